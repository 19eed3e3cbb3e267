"""A real browser's EventSource against a real server that is killed and comes back.

Chromium is driven through chromedriver's own HTTP interface, so nothing is installed for it from
PyPI. Without the two programs the test is skipped and says so.
"""

from __future__ import annotations

import shutil
import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.support.server import Api, free_port, run, server_process

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DRIVER = shutil.which("chromedriver")
FLAGS = [
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--disable-default-apps", "--disable-extensions"),
]
PAGE = """
window.seen = [];
window.opened = 0;
window.states = [];
const source = new EventSource(arguments[0]);
source.onopen = () => { window.opened += 1; };
source.onerror = () => { window.states.push(source.readyState); };
source.addEventListener("record", (event) => {
  const frame = JSON.parse(event.data);
  for (const record of frame.records) {
    window.seen.push([frame.topic, record.$seq, record.data, event.lastEventId]);
  }
});
"""

pytestmark = [
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None,
        reason="needs chromium and chromedriver on the PATH (Debian: make install-browser)",
    ),
    pytest.mark.timeout(180),
]


class Browser:
    """One page, through the W3C WebDriver protocol."""

    def __init__(self, client: httpx.Client, session: str) -> None:
        self._client = client
        self._session = session

    def open(self, url: str) -> None:
        self._post("url", {"url": url})

    def script(self, text: str, *args: object) -> Any:
        return self._post("execute/sync", {"script": text, "args": list(args)})

    def _post(self, command: str, body: dict[str, Any]) -> Any:
        answer = self._client.post(f"/session/{self._session}/{command}", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()["value"]


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    port = free_port()
    driver = subprocess.Popen(
        [str(DRIVER), f"--port={port}"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        with httpx.Client(
            base_url=f"http://127.0.0.1:{port}", timeout=60, trust_env=False
        ) as client:
            while True:
                try:
                    if client.get("/status").json()["value"]["ready"]:
                        break
                except httpx.TransportError:
                    assert driver.poll() is None, "chromedriver ended by itself"
            options = {
                "binary": CHROMIUM,
                "args": [*FLAGS, f"--user-data-dir={profile}"],
            }
            wanted = {"capabilities": {"alwaysMatch": {"goog:chromeOptions": options}}}
            made = client.post("/session", json=wanted)
            assert made.status_code == 200, made.text
            session = made.json()["value"]["sessionId"]
            try:
                yield Browser(client, session)
            finally:
                client.delete(f"/session/{session}")
    finally:
        driver.terminate()
        driver.wait(30)


def wait_seen(browser: Browser, count: int) -> list[list[Any]]:
    """What the page got, once it is so many records; the test's own timeout is the deadline."""
    while len(seen := browser.script("return window.seen")) < count:
        pass
    return list(seen)


async def append(api: Api, *pairs: tuple[str, int]) -> None:
    for topic, value in pairs:
        await api.append(topic, value)


@pytest.mark.parametrize("kind", ["one topic", "a session"])
def test_event_source_resumes_across_a_restart_of_the_server(tmp_path: Path, kind: str) -> None:
    port = free_port()
    data = tmp_path / "data"
    with chromium(tmp_path / "profile") as browser:
        with server_process(data, port=port) as process:
            run(append(process.api, ("a", 1), ("b", 1), ("a", 2)))
            path = "/v0/topics/a/watch"
            if kind == "a session":
                path = run(process.api.session(topics={"a": {}, "b": {}}, prefix="a*"))
            origin = f"http://127.0.0.1:{port}"
            browser.open(f"{origin}/docs")
            # The page may connect to its own server and to nothing else.
            browser.script(PAGE, origin + path)
            topics = ["a"] if kind == "one topic" else ["a", "b"]
            before = wait_seen(browser, 2 if kind == "one topic" else 3)
            process.kill()
        with server_process(data, port=port) as process:
            run(append(process.api, ("a", 3), ("b", 2), ("a", 4)))
            seen = wait_seen(browser, len(before) + (2 if kind == "one topic" else 3))
            run(append(process.api, ("a", 5)))
            seen = wait_seen(browser, len(seen) + 1)
            assert browser.script("return window.opened") == 2, "it reconnected by itself"
            assert 2 not in browser.script("return window.states"), "it never gave up"
    for topic in topics:
        got = [(seq, value) for name, seq, value, _ in seen if name == topic]
        last = 5 if topic == "a" else 2
        assert got == [(seq, seq) for seq in range(1, last + 1)], "every seq once and in order"
    assert all(last_id for *_, last_id in seen)


def test_the_api_page_runs_its_scripts_in_a_browser(tmp_path: Path) -> None:
    with server_process(tmp_path / "data") as process, chromium(tmp_path / "profile") as browser:
        run(append(process.api, ("a", 1)))
        browser.open(f"http://127.0.0.1:{process.port}/docs")
        while not browser.script("return document.querySelectorAll('form').length"):
            pass
        forms = browser.script("return document.querySelectorAll('form').length")
        document = run(process.api.get("/openapi.json")).json
        assert forms == sum(len(methods) for methods in document["paths"].values())
