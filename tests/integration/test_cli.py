"""The commands against real servers: in this process, as processes, in pipes and on a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from fairway import Fairway
from fairway.cli import main
from fairway.client import Client, NewRecord
from fairway.errors import BadPlace, BadRecord
from tests.support.server import ServerProcess, free_port, server_process
from tests.support.terminal import on_terminal
from tests.support.topics import unchecked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from click.testing import Result

ROOT = Path(__file__).parents[2]
WAIT_S = 60
UNREADABLE = "/proc/self/mem"
"""It opens, and its first page cannot be read."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with server_process(tmp_path_factory.mktemp("served")) as process:
        yield process


@pytest.fixture
def url(server: ServerProcess) -> str:
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture
def client(url: str) -> Iterator[Client]:
    with Client(url) as made:
        yield made


def fairway(url: str, *words: str, input: str | bytes | None = None) -> Result:
    """A command in this process. Its output is no terminal."""
    return CliRunner().invoke(main, [*words], input=input, env={"FAIRWAY_URL": url})


def good(url: str, *words: str, input: str | bytes | None = None) -> str:
    result = fairway(url, *words, input=input)
    assert result.exit_code == 0, result.output
    return result.stdout


def as_json(url: str, *words: str, input: str | None = None) -> list[Any]:
    return [json.loads(line) for line in good(url, *words, "--json", input=input).splitlines()]


@contextmanager
def running(url: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A command as a process, ended when the block is left."""
    child = subprocess.Popen(
        [sys.executable, "-m", "fairway", *words],
        cwd=ROOT,
        env={**os.environ, "FAIRWAY_URL": url},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()


# --- topics


def test_topics_are_created_listed_measured_and_deleted(url: str) -> None:
    created = good(url, "topic", "create", "cli.a", "--ttl", "1h", "--cap-bytes", "10MB")
    assert created == "created topic cli.a\n"
    again = as_json(url, "topic", "create", "cli.a", "--cap-records", "7", "--durability", "disk")
    assert again[0]["created"] is False
    config = again[0]["config"]
    assert (config["ttl_ms"], config["cap_bytes"], config["cap_records"]) == (3_600_000, 10**7, 7)
    good(url, "topic", "append", "cli.a", "1")
    assert good(url, "topic", "ls", "--prefix", "cli.").startswith("cli.a\t1\t")
    assert [one["topic"] for one in as_json(url, "topic", "ls", "--prefix", "cli.")] == ["cli.a"]
    stats = dict(line.split("\t") for line in good(url, "topic", "stats", "cli.a").splitlines())
    assert (stats["count"], stats["config.durability"]) == ("1", "disk")
    assert as_json(url, "topic", "stats", "cli.a")[0]["head_seq"] == 1
    assert good(url, "topic", "delete", "cli.a", "--yes") == "deleted topic cli.a\n"
    assert good(url, "topic", "delete", "cli.a", "--yes") == "there was no topic cli.a\n"


def test_one_record_is_json_or_text(url: str, client: Client) -> None:
    for words in (['{"id": 1}'], ["hello"], ["7"], ["7", "--text"], ['{"id"', "--text"]):
        good(url, "topic", "append", "one", *words, "--tag", "t")
    assert [(record.data, record.tag) for record in client.topic("one").read()] == [
        (data, "t") for data in ({"id": 1}, "hello", 7, "7", '{"id"')
    ]
    assert good(url, "topic", "append", "one", "8", "--key", "k") == "one 6\n"
    assert good(url, "topic", "append", "one", "8", "--key", "k").startswith("one 6 (it was there")
    broken = fairway(url, "topic", "append", "one", '{"id"')
    assert broken.exit_code == 2
    assert "--text" in broken.stderr


def test_lines_become_records(url: str, client: Client, tmp_path: Path) -> None:
    lines = "".join(f'{{"n": {at}}}\n\n' for at in range(2500))
    assert good(url, "topic", "append", "lines", input=lines) == (
        "2,500 lines appended to lines: 1..2500\n"
    )
    file = tmp_path / "more.ndjson"
    file.write_text("1\n2\r\n3")
    done = as_json(url, "topic", "append", "lines", "--file", str(file), "--batch", "2")
    assert (done[0]["records"], done[0]["batches"], done[0]["last_seq"]) == (3, 2, 2503)
    good(url, "topic", "append", "lines", "-", "--text", input=" spaces stay \n")
    data = [record.data for record in client.topic("lines").read()]
    assert data == [*({"n": at} for at in range(2500)), 1, 2, 3, " spaces stay "]
    assert good(url, "topic", "append", "lines", "-", input="") == "0 lines appended to lines\n"


def test_a_number_is_stored_as_it_is_spelled_however_long(url: str) -> None:
    digits = "9" * 5000
    assert good(url, "topic", "append", "long", "-", input=digits) == (
        "1 lines appended to long: 1..1\n"
    )
    assert good(url, "topic", "append", "long", digits) == "long 2\n"
    assert good(url, "topic", "diff", "long").count(digits) == 2


DEEP = "[" * 5000 + "]" * 5000


@pytest.mark.parametrize(
    "line", ["{bad", '"\\ud800', "1 2", b'"\xff"', DEEP], ids=lambda line: repr(line)[:9]
)
def test_a_bad_line_is_named_and_the_rest_can_follow(
    url: str, client: Client, tmp_path: Path, line: str | bytes
) -> None:
    topic = client.topic("mended")
    topic.delete()
    bad = line if isinstance(line, bytes) else line.encode()
    file = tmp_path / "with space.ndjson"
    good_lines = [b"%d" % at for at in range(30)]
    file.write_bytes(b"\n".join([*good_lines[:25], bad, *good_lines[25:]]))
    failed = fairway(
        url, "topic", "append", "mended", "--file", str(file), "--batch", "10", "--tag", "x"
    )
    assert failed.exit_code == 1
    assert failed.stdout == ""
    assert len(failed.stderr.splitlines()) == 1
    assert "line 26 is no JSON" in failed.stderr
    assert "20 lines were acknowledged" in failed.stderr
    file.write_bytes(b"\n".join(good_lines))
    again = shlex.split(failed.stderr.partition("go on with: fairway ")[2])
    good(url, *again)
    assert [(one.data, one.tag) for one in topic.read()] == [(at, "x") for at in range(30)]


def test_a_refused_bulk_says_how_to_go_on(url: str, client: Client) -> None:
    topic = client.topic("refusing", int)
    topic.put(cap_records=25, discard="reject")
    lines = "".join(f"{at}\n" for at in range(40))
    failed = fairway(url, "topic", "append", "refusing", "-", "--batch", "10", input=lines)
    assert failed.exit_code == 1
    assert "20 lines were acknowledged" in failed.stderr
    topic.put(cap_records=0)
    again = shlex.split(failed.stderr.partition("go on with: fairway ")[2])
    elsewhere = f"http://127.0.0.1:{free_port()}"  # where the shell it is pasted into would go
    good(elsewhere, *again, input=lines)
    assert [one.data for one in topic.read()] == [*range(40)]


def test_diff_reads_a_page_and_says_where_the_next_begins(url: str, client: Client) -> None:
    client.topic("paged").append(NewRecord(1, tag="a.x"), NewRecord("\x1b[31mred", tag="\x1b]b"), 3)
    result = fairway(url, "topic", "diff", "paged", "--limit", "2")
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [(row[0], row[2], row[3]) for row in rows] == [
        ("1", "a.x", "1"),
        ("2", "\\x1b]b", '"\\u001b[31mred"'),
    ]
    assert "1 more: --from-seq 2" in result.stderr
    assert "caught up at 3" in fairway(url, "topic", "diff", "paged", "--from-seq", "2").stderr
    page = as_json(url, "topic", "diff", "paged", "--match", "a.*")[0]
    assert [record["$seq"] for record in page["records"]] == [1]
    assert page["caught_up"] is True


def test_a_record_that_cannot_be_read_is_told_in_its_place_by_client_and_commands(
    tmp_path: Path,
) -> None:
    async def store() -> None:
        async with Fairway(tmp_path, worker=None) as app:
            await app.topics.create("old")
            raw = b'[{"data":1},{"data":2,"meta":{"k":1e999}},{"data":3}]'
            await app.topics.append("old", unchecked(raw))

    asyncio.run(store())
    with server_process(tmp_path) as server:
        url = f"http://127.0.0.1:{server.port}"
        with Client(url) as client:
            topic = client.topic("old")
            page = topic.diff()
            assert [one.data for one in page.records] == [1, 3]
            assert [one.seq for one in page.bad] == [2]
            bad: list[BadRecord] = []
            assert [one.data for one in topic.read(on_bad_record=bad.append)] == [1, 3]
            assert [(one.seq, one.data) for one in bad] == [(2, b"2")]
            watch = topic.watch(0)
            following = iter(watch)
            assert next(following).data == 1
            with pytest.raises(BadRecord, match="old 2: meta: "):
                next(following)
            assert next(iter(watch)).data == 3
        reason = "meta: Number out of range - at `$[...]`"
        tail = ("topic", "tail", "old", "--from-start", "--count", "3")
        for words in (("topic", "diff", "old"), tail):
            shown = good(url, *words).splitlines()
            assert shown[1] == f"# record 2 cannot be read: {reason}"
            assert [shown[at].split("\t")[0] for at in (0, 2)] == ["1", "3"]
        told = {"$seq": 2, "data": 2, "reason": reason}
        [facts] = as_json(url, "topic", "diff", "old")
        assert ([one["data"] for one in facts["records"]], facts["bad"]) == ([1, 3], [told])
        lines = as_json(url, *tail)
        assert (lines[0]["data"], lines[1], lines[2]["data"]) == (1, {"bad": told}, 3)


def test_tail_from_the_start_shows_what_is_lost(url: str, client: Client) -> None:
    topic = client.topic("short")
    topic.put(cap_records=2)
    topic.append(1, 2, 3, 4, 5)
    shown = good(url, "topic", "tail", "short", "--from-start", "--count", "2").splitlines()
    assert shown[0] == "# records 1..3 are gone: cap"
    assert [line.split("\t")[0] for line in shown[1:]] == ["4", "5"]
    told = as_json(url, "topic", "tail", "short", "--from-start", "--count", "1")
    assert (told[0]["tombstone"]["gap_from"], told[0]["tombstone"]["gap_to"]) == (1, 3)
    assert (told[1]["$seq"], told[1]["data"]) == (4, 4)
    one = as_json(url, "topic", "tail", "short", "--from-seq", "4", "--count", "1")
    assert one[0]["$seq"] == 5


def test_tail_can_leave_the_priority_alone(url: str, client: Client) -> None:
    topic = client.topic("looked-at")
    topic.append(1)
    good(url, "topic", "tail", "looked-at", "--from-start", "--count", "1", "--no-touch")
    assert topic.state().last_read_ts is None
    for several in (client.watch(["looked-at"], touch=False), topic.watch(touch=False)):
        with several:
            next(iter(several))
    assert topic.state().last_read_ts is None
    good(url, "topic", "tail", "looked-at", "--from-start", "--count", "1")
    assert topic.state().last_read_ts is not None


def test_records_are_deleted_by_seq_and_by_tag(url: str, client: Client) -> None:
    client.topic("some").append(*(NewRecord(at, tag=f"t{at % 2}") for at in range(6)))
    assert good(url, "topic", "delete", "some", "--before-seq", "3", "--yes") == (
        "deleted 2 records of some\n"
    )
    assert good(url, "topic", "delete", "some", "--match", "t0", "--yes") == (
        "deleted 2 records of some\n"
    )
    assert [one.seq for one in client.topic("some").read()] == [4, 6]
    assert good(url, "topic", "delete", "some", "--seq", "4", "--yes") == (
        "deleted 1 records of some\n"
    )
    assert [one.seq for one in client.topic("some").read()] == [6]
    unasked = fairway(url, "topic", "delete", "some")
    assert unasked.exit_code == 2
    assert "--yes" in unasked.stderr
    assert client.topic("some").state().count == 1, "nothing was deleted unasked"


# --- routers


def test_routers(url: str, client: Client) -> None:
    client.topic("from").put()
    made = good(url, "router", "put", "r1", "from", "to", "--filter", "eu.*")
    assert made == "created router r1: from -> to\n"
    client.topic("from").append(NewRecord(1, tag="eu.a"), NewRecord(2, tag="us.a"))
    told = good(url, "topic", "tail", "to", "--from-start", "--count", "1")
    assert told.rstrip().endswith("eu.a\t1")
    assert good(url, "router", "ls").startswith("r1\tfrom\tto\teu.*\t")
    assert as_json(url, "router", "ls", "--source", "from")[0]["filter"] == ["tag", "Glob", "eu.*"]
    assert "dest\tto\n" in good(url, "router", "show", "r1")
    cycle = fairway(url, "router", "put", "r2", "to", "from")
    assert cycle.exit_code == 1
    assert "cycle" in cycle.stderr
    assert good(url, "router", "delete", "r1") == "deleted router r1\n"
    assert fairway(url, "router", "show", "r1").exit_code == 1


# --- what goes wrong


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["topic", "stats", "nothing"], 1, "Error: there is no topic 'nothing'"),
        (["topic", "tail", "nothing"], 1, "Error: there is no topic 'nothing'"),
        (["topic", "append", "a/b", "1"], 1, "cannot name a topic"),
        (["topic", "create", "x", "--ttl", "soon"], 2, "a duration is a number and a unit"),
        (["topic", "create", "x", "--durability", "some"], 2, "fsync"),
        (["topic", "append", "x", "1", "--skip", "2"], 2, "--skip is for lines"),
        (["topic", "append", "x", DEEP], 2, "--text takes it as it is"),
        (["topic", "tail", "x", "--from-start", "--from-seq", "1"], 2, "not both"),
        (["topic", "--url", "nowhere", "ls"], 1, "http://127.0.0.1:4000"),
        (["topic", "--url", "http://a..b", "ls"], 1, "http://127.0.0.1:4000"),
        (["graph", "--url", f"http://{'a' * 64}.b", "ls"], 1, "http://127.0.0.1:4000"),
        (["router", "--url", "http://a..b", "ls"], 1, "http://127.0.0.1:4000"),
        (["topic", "append", "x", "--file", UNREADABLE], 1, "cannot be read: Input/output error"),
        (["topic", "nonsense"], 2, "No such command"),
    ],
)
def test_errors_are_one_line_and_have_a_code(
    url: str, words: list[str], code: int, said: str
) -> None:
    result = fairway(url, *words)
    assert result.exit_code == code, result.output
    assert said in result.stderr
    assert "Traceback" not in result.output
    if code == 1:
        assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("topic append x -", "standard input is closed"),
        ("topic append x", "standard input is closed"),
        ("topic delete x", "say --yes"),
        ("graph push x numbers -", "standard input is closed"),
        ("jobs prune --older-than 7d", "say --yes"),
    ],
)
def test_a_closed_standard_input_is_wrong_usage(url: str, words: str, said: str) -> None:
    command = ["sh", "-c", 'exec "$@" <&-', "sh", sys.executable, "-m", "fairway", *words.split()]
    result = subprocess.run(
        command, env=os.environ | {"FAIRWAY_URL": url}, capture_output=True, text=True, timeout=60
    )
    assert result.returncode == 2, result.stderr
    assert said in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("words", ["topic append x -", "graph push x numbers -"])
def test_a_standard_input_that_fails_is_one_line(url: str, words: str) -> None:
    with open(UNREADABLE, "rb") as failing:
        result = subprocess.run(
            [sys.executable, "-m", "fairway", *words.split()],
            env=os.environ | {"FAIRWAY_URL": url},
            stdin=failing,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert result.returncode == 1, result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "standard input cannot be read: Input/output error" in result.stderr


def test_without_a_server_it_says_how_to_start_one() -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    for words in (["ls"], ["append", "t", "1"], ["append", "t", "-"], ["tail", "t"]):
        result = fairway(nobody, "topic", *words, input="1\n")
        assert result.exit_code == 1
        assert len(result.stderr.splitlines()) == 1
        assert f"nothing answers at {nobody}" in result.stderr
        assert "start one with: fairway serve" in result.stderr


def test_a_key_comes_from_the_option_or_the_environment(tmp_path: Path) -> None:
    with server_process(tmp_path, "--keys", str(keys_file(tmp_path))) as server:
        url = f"http://127.0.0.1:{server.port}"
        refused = fairway(url, "topic", "ls")
        assert refused.exit_code == 1
        assert "FAIRWAY_API_KEY" in refused.stderr
        good(url, "topic", "--key", "s3cret", "append", "t", "1", "--key", "idem")
        by_environment = CliRunner().invoke(
            main, ["topic", "ls"], env={"FAIRWAY_URL": url, "FAIRWAY_API_KEY": "s3cret"}
        )
        assert by_environment.stdout.startswith("t\t1\t")
        wrong = fairway(url, "topic", "--key", "wr0ng", "ls")
        assert wrong.exit_code == 1
        assert "wr0ng" not in wrong.output


def keys_file(folder: Path) -> Path:
    path = folder / "keys.toml"
    path.write_text('[[key]]\nname = "me"\nsecret = "s3cret"\nscopes = ["admin"]\n')
    return path


def test_help_teaches_by_example() -> None:
    runner = CliRunner()
    for words in (["topic"], ["topic", "append"], ["topic", "tail"], ["router", "put"]):
        shown = runner.invoke(main, [*words, "--help"])
        assert shown.exit_code == 0
        assert f"fairway {words[0]} " in shown.stdout
    top = runner.invoke(main, ["--help"]).stdout
    assert "topic" in top
    assert "router" in top


# --- as processes


def test_a_tail_in_a_pipe_shows_records_as_they_come_and_ends_on_ctrl_c(
    url: str, client: Client
) -> None:
    topic = client.topic("piped")
    topic.append(1)
    with running(url, "topic", "tail", "piped", "--from-start", "--json") as tail:
        assert tail.stdout is not None
        assert json.loads(tail.stdout.readline())["data"] == 1
        topic.append({"two": 2})
        assert json.loads(tail.stdout.readline())["data"] == {"two": 2}
        tail.send_signal(signal.SIGINT)
        rest, errors = tail.communicate(timeout=WAIT_S)
        assert (tail.returncode, rest, errors) == (130, "", "")


def test_stats_are_shown_again_and_again(url: str, client: Client) -> None:
    topic = client.topic("measured")
    topic.append(1)
    words = ("topic", "stats", "measured", "--watch", "--interval", "1ms", "--json")
    with running(url, *words) as stats:
        assert stats.stdout is not None
        assert json.loads(stats.stdout.readline())["count"] == 1
        topic.append(2)
        while json.loads(stats.stdout.readline())["count"] != 2:
            pass
        stats.send_signal(signal.SIGINT)
        _, errors = stats.communicate(timeout=WAIT_S)
        assert (stats.returncode, errors) == (130, "")


def test_a_tail_says_that_its_topic_was_deleted(url: str, client: Client) -> None:
    topic = client.topic("doomed")
    topic.append(1)
    with running(url, "topic", "tail", "doomed", "--from-start") as tail:
        assert tail.stdout is not None
        assert tail.stdout.readline().startswith("1\t")
        topic.delete()
        _, errors = tail.communicate(timeout=WAIT_S)
        assert (tail.returncode, errors) == (0, "doomed was deleted\n")


def test_a_tail_lives_through_a_restart_of_the_server(tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with Client(url) as client, ExitStack() as stack:
        with server_process(tmp_path, port=port):
            client.topic("t").append("before")
            tail = stack.enter_context(running(url, "topic", "tail", "t", "--from-start"))
            assert tail.stdout is not None
            assert '"before"' in tail.stdout.readline()
        stack.enter_context(server_process(tmp_path, port=port))
        client.topic("t").append("after")
        assert tail.stdout.readline().startswith("2\t")
        tail.send_signal(signal.SIGINT)
        _, errors = tail.communicate(timeout=WAIT_S)
        assert tail.returncode == 130
        assert "resuming" in errors


def test_an_interrupted_bulk_says_how_to_go_on(url: str, client: Client) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "fairway", "topic", "append", "cut", "-", "--batch", "5"],
        cwd=ROOT,
        env={**os.environ, "FAIRWAY_URL": url},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert child.stdin is not None
    child.stdin.write(b"".join(b"%d\n" % at for at in range(8)))
    child.stdin.flush()
    topic = client.topic("cut", int)
    topic.put()
    assert topic.diff(wait_ms=30_000).records, "the first batch is stored"
    # Its answer may still be on its way; the key makes going on safe in either case.
    child.send_signal(signal.SIGINT)
    _, errors = child.communicate(timeout=WAIT_S)
    assert child.returncode == 130, errors
    said = errors.decode()
    assert "lines were acknowledged" in said
    again = shlex.split(said.partition("go on with: fairway ")[2])
    good(url, *again, input="".join(f"{at}\n" for at in range(12)))
    assert [one.data for one in topic.read()] == [*range(12)]


# --- on a terminal


def test_on_a_terminal_there_are_headings_and_colours(url: str, client: Client) -> None:
    topic = client.topic("seen")
    topic.put(cap_records=1200)
    topic.append_many(range(2500))
    client.topic("seen").append("x\u202ey", tag="\x07bell")
    listed = on_terminal(url, "topic", "ls", "--prefix", "seen")
    assert "TOPIC" in listed
    assert "1,200" in listed
    tail = on_terminal(url, "topic", "tail", "seen", "--from-start", "--count", "1200")
    assert "-- records 1..1301 are gone: cap --" in tail
    assert "\\x07bell" in tail
    assert "x\\u202ey" in tail
    assert "head_seq" in on_terminal(url, "topic", "stats", "seen")


def test_a_bulk_on_a_terminal_shows_progress(url: str, tmp_path: Path) -> None:
    file = tmp_path / "numbers"
    file.write_text("".join(f"{at}\n" for at in range(5000)))
    shown = on_terminal(url, "topic", "append", "progress", "--file", str(file))
    assert re.search(r"progress.*%.*lines", shown)
    assert "5,000 lines appended to progress: 1..5000" in shown


LONG = "x" * 300


@pytest.mark.parametrize("place", ["file", "file/below", "/dev/null/x", "/proc/xx", "odd", LONG])
def test_data_that_can_be_kept_nowhere_is_one_line(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "odd" / "owner.lock").mkdir(parents=True)
    command = [sys.executable, "-m", "fairway", "serve", "--port", "0", "--data", place]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=WAIT_S)
    assert ended.returncode == 2, ended
    assert ended.stdout == ""
    [line] = ended.stderr.splitlines()
    assert line.startswith(f"Error: no data can be kept at {place}"), line


@pytest.mark.parametrize("scheme", ["", "rocksdb:"])
@pytest.mark.parametrize(
    "place", [LONG, "/".join(["", "tmp", *["y" * 200] * 25]), "a\0b", "file"], ids=range(4)
)
def test_a_place_that_no_file_system_has_is_a_bad_place_for_log_and_jobs(
    tmp_path: Path, scheme: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)

    async def enter(entered: Any) -> None:
        async with entered:
            pass

    app = Fairway(scheme + place)
    for entered in (app, app.working()):
        with pytest.raises(BadPlace, match="no data can be kept at"):
            asyncio.run(enter(entered))


@pytest.mark.parametrize(
    "words",
    [
        ["topic", "create", "unitless", "--ttl", "60"],
        ["jobs", "prune", "--older-than", "7", "--yes"],
        ["jobs", "prune", "--older-than", "0", "--yes"],
        ["jobs", "enqueue", "unitless", "--delay", "5"],
        ["worker", "nothing:app", "--lease-ttl", "60"],
    ],
)
def test_a_duration_without_a_unit_is_refused_and_nothing_happens(
    url: str, client: Client, words: list[str]
) -> None:
    result = fairway(url, *words)
    assert result.exit_code == 2, result.output
    assert re.search(r"a duration has a unit: write \d+s for seconds", result.stderr)
    assert not list(client.topics("unitless"))


def test_the_flag_for_data_wins_over_the_app_and_the_banner_says_so(tmp_path: Path) -> None:
    (tmp_path / "flagged_app.py").write_text("from fairway import Fairway\napp = Fairway('own')\n")
    command = [sys.executable, "-m", "fairway", "serve", "flagged_app:app", "--port", "0"]
    for options, said in (
        ((), "Fairway serves own at http"),
        (("--data", "other"), "Fairway serves other (--data, instead of the app's own) at http"),
    ):
        with subprocess.Popen(
            [*command, *options], cwd=tmp_path, stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            line = child.stdout.readline()
            child.terminate()
            child.communicate(timeout=WAIT_S)
        assert line.startswith(said), line
        assert (tmp_path / "other").exists() == ("other" in said)


def test_what_a_server_with_keys_suggests_has_a_place_for_one(tmp_path: Path) -> None:
    for options in ((), ("--keys", str(keys_file(tmp_path)))):
        with server_process(tmp_path / "data", *options) as server:
            assert server._child.stdout is not None
            lines = iter(server._child.stdout.readline, b"")
            said = b""
            while b"Ctrl-C" not in said:
                said += next(lines)
        text = said.decode()
        assert text.count("curl") == 3
        assert text.count("-H 'authorization: Bearer YOUR_KEY'") == (3 if options else 0)
        assert "s3cret" not in text


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
@pytest.mark.skipif(not (ROOT / ".venv/.installed-run").exists(), reason="not made by make")
def test_make_run_starts_the_server_and_what_it_suggests_works_as_pasted(tmp_path: Path) -> None:
    arguments = f"ARGS=--port {free_port()} --data {tmp_path / 'data'}"
    with subprocess.Popen(
        ["make", "run", arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # so that a Ctrl-C is for both of them, as in a terminal
    ) as process:
        try:
            assert process.stdout is not None
            said = ""
            while "Ctrl-C stops" not in said:
                line = process.stdout.readline()
                assert line, f"it ended: {said}"
                said += line
            append, watch, diff = re.findall(r"^  (curl .*(?:\n {7}.*)?)$", said, re.MULTILINE)
            appended = subprocess.run(append, shell=True, capture_output=True, timeout=WAIT_S)
            assert json.loads(appended.stdout)["last_seq"] == 1
            read = subprocess.run(diff, shell=True, capture_output=True, timeout=WAIT_S)
            assert json.loads(read.stdout)["records"][0]["data"] == "hello"
            with subprocess.Popen(shlex.split(watch), stdout=subprocess.PIPE, text=True) as watcher:
                assert watcher.stdout is not None
                assert any('"data":"hello"' in line for line in watcher.stdout)
                watcher.kill()
        finally:
            os.killpg(process.pid, signal.SIGINT)
            process.wait(WAIT_S)
    assert not _answers(said)


def _answers(said: str) -> bool:
    found = re.search(r"http://127\.0\.0\.1:(\d+)", said)
    assert found is not None
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", int(found[1]))) == 0
