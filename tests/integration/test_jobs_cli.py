"""`fairway jobs` against a real server that works on them: in pipes, on a terminal, and as JSON."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from fairway.cli import main
from fairway.cli.jobs import jobs
from tests.support.jobs_served import jobs_process
from tests.support.terminal import on_terminal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result


DEEP = "[" * 5_000 + "]" * 5_000


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with jobs_process(tmp_path_factory.mktemp("served")) as made:
        yield made


def fairway(url: str, *words: str) -> Result:
    """A command of jobs in this process. Its output is no terminal."""
    return CliRunner().invoke(main, ["jobs", *words], env={"FAIRWAY_URL": url})


def good(url: str, *words: str) -> str:
    result = fairway(url, *words)
    assert result.exit_code == 0, result.output
    return result.stdout


def as_json(url: str, *words: str) -> list[Any]:
    return [json.loads(line) for line in good(url, *words, "--json").splitlines()]


def enqueue(url: str, *words: str) -> str:
    """Enqueue a job; its id."""
    output = good(url, "enqueue", *words)
    assert output.startswith("job "), output
    return output.split()[1]


def test_a_job_is_enqueued_and_its_result_printed(url: str) -> None:
    done = fairway(url, "enqueue", "add", '{"a": 2, "nonce": "cli"}', "--wait", "30s")
    assert (done.exit_code, done.stdout) == (0, "3\n")
    assert re.fullmatch(r"job \d+\n", done.stderr)
    (made,) = as_json(url, "enqueue", "elsewhere", "--key", "cli-once", "--delay", "1h")
    assert made["fresh"]
    again = good(url, "enqueue", "elsewhere", "--key", "cli-once")
    assert again == f"job {made['id']} (it was there already)\n"
    (job,) = as_json(url, "show", str(made["id"]))
    assert (job["status"], job["key"], job["children"]) == ("scheduled", "cli-once", [])
    at = enqueue(url, "elsewhere", "--at", "2100-01-01T00:00:00+00:00", "--priority", "5")
    shown = dict(line.split("\t") for line in good(url, "show", at).splitlines())
    assert (shown["due"], shown["priority"]) == ("2100-01-01T00:00:00.000Z", "5")


def test_what_is_wrong_is_said_in_a_line(url: str) -> None:
    for words, code, output in (
        (["enqueue", "add", '{"a": "x"}'], 1, "job 'add': Expected `int`, got `str` - at `a`"),
        (["enqueue", "add", "[1]"], 2, "ARGS is a JSON object"),
        (["enqueue", "add", f'{{"a": {DEEP}}}'], 2, "ARGS is a JSON object"),
        (["enqueue", "add", '{"a": "\udcff"}'], 2, "ARGS is a JSON object"),
        (["enqueue", "add", '{"a": 1e999}'], 1, "Number out of range"),
        (["signal", "1", "payment", DEEP], 2, "nested too deeply"),
        (["signal", "1", "payment", '"\udcff"'], 2, "--text takes it as it is"),
        (["enqueue", "x", "--delay", "soon"], 2, "a duration is"),
        (["show", "999999999"], 1, "there is no job '999999999'"),
        (["show", "x"], 2, "not a valid integer"),
        (["ls", "--status", "lost"], 2, "'lost' is not one of"),
        (["ls", "--limit", "0"], 2, "is not in the range"),
        (["ls", "--limit", str(2**63)], 2, "is not in the range"),
        (["ls", "--parent", str(10**30)], 1, "parent is a whole number from 0 to"),
        (["show", str(10**30)], 1, "id is a whole number from 1 to"),
        (["signal", "order-7", "payment"], 2, "--by-key"),
        (["signal", "--by-key", "nobody", "payment"], 1, "there is no job 'nobody'"),
        (["limit", "mail"], 2, "--concurrency, --rate or both; or --none"),
        (["limit", "mail", "--rate", "0"], 2, "is not in the range"),
        (["limit", "mail", "--rate", "1e-320"], 2, "is not in the range"),
        (["limit", "mail", "--rate", "inf"], 2, "is not in the range"),
        (["limit", "mail", "--rate", "nan"], 1, "rate_per_s is from 1e-06 to 1,000,000, not nan"),
        (["pause", "a b"], 1, "cannot name a queue"),
        (["prune", "--older-than", "7d"], 2, "say --yes"),
    ):
        result = fairway(url, *words)
        assert result.exit_code == code, (words, result.output)
        assert output in result.stderr, (words, result.stderr)
        assert "Traceback" not in result.stderr


def test_jobs_are_listed(url: str) -> None:
    made = [enqueue(url, "counted", "--queue", "counted", "--tenant", f"t{n}") for n in range(3)]
    lines = [line.split("\t") for line in good(url, "ls", "--kind", "counted").splitlines()]
    assert [line[:6] for line in lines] == [
        [id, "counted", "ready", "counted", f"t{n}", "0/20"]
        for n, id in reversed([*enumerate(made)])
    ]
    few = fairway(url, "ls", "--queue", "counted", "--limit", "2")
    assert [line.split("\t")[0] for line in few.stdout.splitlines()] == made[:0:-1]
    assert "--limit" in few.stderr
    listed = as_json(url, "ls", "--tenant", "t1", "--status", "ready")
    assert [str(job["id"]) for job in listed] == [made[1]]
    assert good(url, "ls", "--parent", made[0]) == ""


def test_a_failed_job_is_shown_and_tried_again(url: str) -> None:
    failed = fairway(url, "enqueue", "fails_once", '{"name": "cli"}', "--wait", "30s")
    assert failed.exit_code == 1
    assert "is failed: RuntimeError: cli is not; look: fairway jobs show" in failed.stderr
    id = failed.stderr.rsplit(None, 1)[1]
    assert "RuntimeError: cli is not\n" in good(url, "ls", "--kind", "fails_once")
    shown = dict(line.split("\t") for line in good(url, "show", id).splitlines())
    assert (shown["status"], shown["attempts"], shown["state"]) == (
        "failed",
        "1/1",
        '{"name":"cli"}',
    )
    assert shown["error"].endswith(r"RuntimeError: cli is not\nto be had")
    terminal = on_terminal(url, "jobs", "show", id)
    assert re.search(r"^ +to be had *$", terminal, re.MULTILINE), "an error keeps its lines"
    assert re.search(r'^state +\{ *\n +"name": "cli" *\n +\} *$', terminal, re.MULTILINE)
    assert good(url, "retry", id) == f"job {id} is tried again\n"
    (job,) = as_json(url, "show", id, "--wait", "30s")
    assert (job["status"], job["result"]) == ("done", "cli")
    refused = fairway(url, "retry", id)
    assert refused.exit_code == 1
    assert "is done and stays so" in refused.stderr


def test_a_job_that_is_not_retried_keeps_no_other_from_it(url: str) -> None:
    done = enqueue(url, "add", '{"a": 1, "b": 2}')
    as_json(url, "show", done, "--wait", "30s")
    failed = fairway(url, "enqueue", "fails_once", '{"name": "behind"}', "--wait", "30s")
    id = failed.stderr.rsplit(None, 1)[1]
    retried = fairway(url, "retry", done, "999999999", id)
    assert (retried.exit_code, retried.stdout) == (1, f"job {id} is tried again\n")
    assert f"job {done} is done and stays so" in retried.stderr
    assert "999999999" in retried.stderr
    assert retried.stderr.endswith("2 of 3 jobs stay as they are\n")
    assert as_json(url, "show", id, "--wait", "30s")[0]["status"] == "done"


def test_signals_and_cancels(url: str) -> None:
    first = enqueue(url, "Purchase", '{"id": 1}')
    assert good(url, "signal", first, "payment", '{"amount": 3}') == (
        f"signal payment sent to {first}\n"
    )
    assert as_json(url, "show", first, "--wait", "30s")[0]["state"]["paid"] == {"amount": 3}
    second = enqueue(url, "Purchase", '{"id": 2}', "--key", "cli/order 2", "--partition-key", "p")
    words = ("signal", "--by-key", "cli/order 2", "other", "--dedup", "d")
    assert good(url, *words) == "signal other sent to cli/order 2\n"
    assert good(url, *words) == "cli/order 2 had that signal already\n"
    good(url, "signal", "--by-key", "cli/order 2", "payment", "7", "--text")
    assert as_json(url, "show", second, "--wait", "30s")[0]["state"]["paid"] == "7"
    assert good(url, "cancel", second) == f"job {second}: it had ended already\n"
    waiting = enqueue(url, "elsewhere")
    assert good(url, "cancel", waiting, "--reason", "no\tmore") == f"job {waiting}: cancelled 1\n"
    assert "error\tno\\tmore\n" in good(url, "show", waiting)


def test_what_nobody_knows_is_listed_as_waiting_for_a_worker_that_does(url: str) -> None:
    id = enqueue(url, "not.here.yet", "{}", "--queue", "math")
    while as_json(url, "show", id)[0]["error"] is None:
        pass
    (line,) = good(url, "ls", "--kind", "not.here.yet").splitlines()
    assert line.startswith(f"{id}\tnot.here.yet\tready\t")
    assert line.endswith("\twaits for a worker that knows the kind 'not.here.yet', version 1")


def test_why_a_running_job_is_cancelled_is_shown(url: str) -> None:
    parent = enqueue(url, "Family", '{"names": ["cyd"]}')
    while not (children := as_json(url, "ls", "--parent", parent, "--status", "running")):
        pass
    child = str(children[0]["id"])
    good(url, "cancel", child, "--reason", "moved away")
    shown = as_json(url, "show", child, "--wait", "30s")[0]
    assert (shown["status"], shown["error"]) == ("cancelled", "moved away")


def test_children_and_progress_are_shown(url: str) -> None:
    parent = enqueue(url, "Family", '{"names": ["ann", "bob"]}')
    while len(children := as_json(url, "ls", "--parent", parent)) < 2:
        pass
    shown = good(url, "show", parent)
    for child in children:
        assert re.search(rf"^child\t{child['id']} \w+ held$", shown, re.MULTILINE)
    eldest = str(children[-1]["id"])
    while as_json(url, "show", eldest)[0]["progress"] is None:
        pass
    assert 'progress\t{"held":"ann"}\n' in good(url, "show", eldest)
    assert f"parent\t{parent}\n" in good(url, "show", eldest)
    summary = good(url, "cancel", parent)
    assert summary == f"job {parent}: cancelled 1, told 2 that run to stop\n"


def test_queues_are_paused_resumed_and_limited(url: str) -> None:
    assert good(url, "pause", "cli.q") == "paused cli.q: 0 ready, 0 still running\n"
    enqueue(url, "elsewhere", "--queue", "cli.q")
    assert "cli.q\tpaused\t1\t0\t0\t0\t0\tno limits\n" in good(url, "queues")
    assert good(url, "resume", "cli.q") == "resumed cli.q: 1 ready\n"
    limited = good(url, "limit", "cli.q", "--concurrency", "4", "--rate", "2.5", "--burst", "5")
    assert limited == "cli.q: 4 at once, 2.5/s, 5 in a burst\n"
    (queue,) = [one for one in as_json(url, "queues") if one["queue"] == "cli.q"]
    assert queue["limits"] == {"concurrency": 4, "rate_per_s": 2.5, "burst": 5}
    assert good(url, "limit", "cli.q", "--none") == "cli.q: no limits\n"
    assert good(url, "limit", "*", "--none") == "*: no limits\n"


def test_what_ended_is_forgotten(url: str) -> None:
    good(url, "enqueue", "add", '{"a": 1, "nonce": "pruned"}', "--wait", "30s")
    assert good(url, "prune", "--older-than", "1h", "--yes") == "0 jobs forgotten\n"
    forget = ("prune", "--older-than", "0s", "--failed-older-than", "30d", "--yes")
    good(url, *forget)
    assert as_json(url, *forget)[0]["pruned"] == 0
    good(url, "enqueue", "add", '{"a": 1, "nonce": "pruned again"}', "--wait", "30s")
    assert as_json(url, *forget)[0]["pruned"] == 1


def test_on_a_terminal_there_are_headings(url: str) -> None:
    id = enqueue(url, "seen", "--queue", "seen", '{"x": "\\u202e"}')
    listed = on_terminal(url, "jobs", "ls", "--kind", "seen")
    assert re.search(r"ID +KIND +STATUS", listed)
    assert re.search(rf"^ *{id} +seen +ready", listed, re.MULTILINE)
    assert re.search(r"QUEUE +STATE +READY", on_terminal(url, "jobs", "queues"))
    assert "\\u202e" in on_terminal(url, "jobs", "show", id), "nothing of a job steers the terminal"


def test_help_teaches_by_example() -> None:
    runner = CliRunner()
    overview = runner.invoke(main, ["jobs", "--help"]).stdout
    for name in jobs.commands:
        assert re.search(rf"^  {name} ", overview, re.MULTILINE)
        shown = runner.invoke(main, ["jobs", name, "--help"])
        assert shown.exit_code == 0
        assert f"fairway jobs {name}" in shown.stdout
    assert "jobs" in runner.invoke(main, ["--help"]).stdout
