"""The API document against the server that it describes: what fits it, and much that does not.

schemathesis makes the requests. No answer is a server error; every answer is one that the document
names, in the shape that it gives; what fits the document is not refused as malformed, and what does
not fit it is refused.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    status_code_conformance,
)

from fairway.server.fronts import FRONTS
from fairway.server.fronts.system import docs_page
from fairway.server.http import problems
from tests.support.server import server_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hypothesis.strategies import SearchStrategy
    from schemathesis import Case

    from fairway.server.http.router import Route
    from tests.conftest import Campaign

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
]
DOCUMENT = FRONTS.document()
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)
MALFORMED = {400, 405, 406, 415}
TOKENS = ("cursor", "last_event_id")
"""What only the server can make: a document says how they look, not which of them count."""
NAMES = {
    "topic": "known",
    "router": "known",
    "wid": "wid_none",
    "id": 1,
    "key": "known",
    "queue": "known",
    "workflow": "known",
    "schedule": "known",
    "graph": "known",
    "source": "known",
}
"""Half of the requests name something that exists: the rest would end at a 404."""
GRAPH = """
from typing import Any
from fairway.graphs.graph import Graph
from fairway.graphs.source import Source

graph = Graph("known", when=Source("known", Any))

@graph.node
def seen(known: Any) -> str:
    return str(known)
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("graphs")
    (folder / "known_graph.py").write_text(GRAPH)
    with server_process(tmp_path_factory.mktemp("data"), "--graphs", str(folder)) as process:
        address = f"http://127.0.0.1:{process.port}"
        job = {"kind": "known", "key": "known", "queue": "known", "window_ms": 10**9}
        made = requests.post(f"{address}/v0/jobs", json={"jobs": [job]}, timeout=30)
        assert made.json()["jobs"] == [{"id": NAMES["id"], "fresh": True}]
        yield address
        assert not process.ended
        assert "Traceback" not in process.errors


@pytest.mark.parametrize(
    "route", FRONTS.routes.all, ids=lambda route: f"{route.method} {route.template}"
)
def test_requests_that_fit_the_document_and_requests_that_do_not(
    route: Route, url: str, campaign: Campaign
) -> None:
    operation = SCHEMA[route.template][route.method]
    arguments = {part[1:-1] for part in route.template.split("/") if part.startswith("{")}
    named = {name: NAMES[name] for name in arguments}
    examples = campaign.rounds(share=5, full=250)
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
        for fixed in [{}, {"path_parameters": named}] if named else [{}]:
            free = arguments and not fixed
            if mode is GenerationMode.POSITIVE or route.body or route.query or free:
                cases = operation.as_strategy(generation_mode=mode, **fixed)
                exchange_all(route, cases, url, examples, campaign, mode.value)


def exchange_all(
    route: Route,
    cases: SearchStrategy[Case],
    url: str,
    examples: int,
    campaign: Campaign,
    label: str,
) -> None:
    described = DOCUMENT["paths"][route.template][route.method.lower()]
    documented, wanted = described["responses"], _schema(described.get("requestBody"))
    fits = label == GenerationMode.POSITIVE.value

    @seed(campaign.seed)
    @settings(
        max_examples=examples,
        phases=[Phase.generate, Phase.shrink],
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(cases)
    def check(case: Case) -> None:
        requests.put(f"{url}/v0/topics/known", timeout=30)
        if route.path.startswith("/v0/graphs"):  # there again, if it was unloaded
            requests.post(f"{url}/v0/graphs", json={"graph": "known_graph:graph"}, timeout=30)
        if isinstance((case.query or {}).get("wait_ms"), int) and case.query["wait_ms"] >= 0:
            case.query["wait_ms"] %= 20  # nobody works on these jobs: none of them ends
        for name in TOKENS if fits else ():
            case.query.pop(name, None)
        if route.stream:
            status = stream_status(case, url)
            assert status < 500, (status, case)
            assert str(status) in documented, (status, case)
        else:
            answer = case.call(base_url=url, timeout=30)
            status = answer.status_code
            # What is wrong for one branch of an `anyOf` may be right for another: then it fits.
            refusable = not fits and not (wanted is not None and _fits(wanted, case.body))
            rejection = [negative_data_rejection] if refusable else []
            case.validate_response(answer, checks=[*CHECKS, *rejection])
            told = _schema(documented.get(str(status)))
            if told is not None and answer.content:
                told.validate(answer.json())
            # A schema counts characters and cannot say what is a limit in bytes.
            malformed = status in MALFORMED and "bytes" not in answer.text
            assert not (fits and malformed), f"{answer.text} for {case.body!r:.500}"
        assert not (fits and route.stream) or status not in MALFORMED, case
        campaign.tally[f"{label}_{status}"] += 1

    check()


def _schema(described: Any) -> jsonschema_rs.Draft202012Validator | None:
    """Of a body in JSON. Not schemathesis's, which does not know tuples in answers."""
    content = (described or {}).get("content", {}).get("application/json")
    if content is None:
        return None
    schema = {**content["schema"], "components": DOCUMENT["components"]}
    return jsonschema_rs.Draft202012Validator(schema)


def _fits(schema: jsonschema_rs.Draft202012Validator, body: Any) -> bool:
    try:
        return bool(schema.is_valid(body))
    except ValueError:  # what schemathesis has for no body at all
        return False


@pytest.mark.parametrize(
    "route",
    [route for route in FRONTS.routes.all if route.body is not None],
    ids=lambda route: f"{route.method} {route.template}",
)
def test_a_body_may_be_left_out_where_the_document_says_so(route: Route, url: str) -> None:
    requests.put(f"{url}/v0/topics/known", timeout=30)
    path = route.template.format(**NAMES)
    answer = requests.request(route.method, url + path, timeout=30)
    operation = FRONTS.document()["paths"][route.template][route.method.lower()]
    refused = answer.status_code in MALFORMED
    assert refused == operation["requestBody"]["required"], answer.text


def test_an_integer_may_be_written_with_a_point(url: str) -> None:
    records = b'{"records":[{"data":1.0}],"config":{"cap_records":2.0e1,"ttl_ms":-0.0}}'
    headers = {"content-type": "application/json"}
    made = requests.post(f"{url}/v0/topics/pointed", data=records, headers=headers, timeout=30)
    assert made.status_code == 201, made.text
    page = requests.post(f"{url}/v0/topics/pointed/diff", json={"from_seq": 0.0}, timeout=30)
    assert b'"data":1.0' in page.content  # what a record holds stays as it was written
    state = requests.get(f"{url}/v0/topics/pointed", timeout=30).json()
    assert (state["config"]["cap_records"], state["config"]["ttl_ms"]) == (20, 0)
    for wrong in (0.5, 1e300, -1.0, "1.0", True):
        answer = requests.post(
            f"{url}/v0/topics/pointed/diff", json={"from_seq": wrong}, timeout=30
        )
        assert answer.status_code == 400, wrong


def stream_status(case: Case, url: str) -> int:
    """Open the stream and leave: it has no end to wait for."""
    wanted: dict[str, Any] = case.as_transport_kwargs(base_url=url)
    with requests.Session() as session:
        answer = session.request(**wanted, stream=True, timeout=30)
        answer.close()
        return answer.status_code


def test_every_route_is_in_the_document_with_its_body_reply_and_errors() -> None:
    made = FRONTS.document()
    assert sum(len(methods) for methods in made["paths"].values()) == len(FRONTS.routes.all)
    names = [one["operationId"] for methods in made["paths"].values() for one in methods.values()]
    assert len(set(names)) == len(names)
    for route in FRONTS.routes.all:
        operation = made["paths"][route.template][route.method.lower()]
        assert ("requestBody" in operation) == (route.body is not None)
        shown = [one["name"] for one in operation["parameters"] if one["in"] == "query"]
        assert shown == route.parameters
        for status, answer in operation["responses"].items():
            if int(status) >= 400 and (route.path, status) != ("/readyz", "503"):
                schema = answer["content"]["application/json"]["schema"]
                assert schema == {"$ref": "#/components/schemas/ErrorReply"}


def test_the_document_shows_the_websocket_and_where_durable_streams_are() -> None:
    made = FRONTS.document()
    socket = made["paths"]["/v0/ws"]["get"]
    assert {"101", "400", "401", "403", "426", "429", "503"} <= socket["responses"].keys()
    assert "200" not in socket["responses"]
    assert "/v1/stream/" in made["info"]["description"]
    assert not [path for path in made["paths"] if path.startswith("/v1")]


def test_the_document_names_the_codes_of_errors() -> None:
    code = FRONTS.document()["components"]["schemas"]["Problem"]["properties"]["code"]
    known = {code for _, _, code in problems.TABLE if code is not None}
    assert set(code["examples"]) == known | set(problems.STATUS_OF_CODE)
    assert {"corrupt", "gave_up", "graph_failed", "already_owned"} <= known
    for methods in FRONTS.document()["paths"].values():
        assert all("500" in operation["responses"] for operation in methods.values())


def test_what_anybody_may_ask_for_is_made_once() -> None:
    """It takes as long as hundreds of requests, and a stranger would pay nothing for it."""
    request: Any = None
    for route in (FRONTS.openapi_json, docs_page):
        first, second = (asyncio.run(route(None, request)) for _ in range(2))
        assert first.body is second.body
