"""The harness reports what it was given: medians, spreads, nulls with reasons, honest verdicts."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.__main__ import available, main
from benchmarks.harness import Report, Target, last_line, peer_environment, readable

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def report() -> Report:
    return Report("made-up", progress_to=io.StringIO())


def test_a_figure_is_the_median_of_its_samples(report: Report) -> None:
    report.figure("latency_ms", [3.0, 1.0, 9.0], "ms")
    report.figure("bytes", 512, "B")
    assert report.as_json()["figures"] == {"latency_ms": 3.0, "bytes": 512}
    assert "1.00 .. 9.00" in report.table()


def test_a_ratio_compares_within_each_round(report: Report) -> None:
    # The machine slowed down tenfold between rounds. The medians of the sides, 20 and 4, would
    # say 5; each round on its own says 2, 5 and 2.
    report.ratio("fast_vs_slow", [2.0, 20.0, 200.0], [1.0, 4.0, 100.0])
    assert report.as_json()["ratios"] == {"fast_vs_slow": 2.0}


def test_a_ratio_needs_three_paired_rounds(report: Report) -> None:
    with pytest.raises(ValueError, match="at least 3 rounds"):
        report.ratio("few", [1.0, 2.0], [1.0, 2.0])
    with pytest.raises(ValueError, match="not 4 and 3"):
        report.ratio("unpaired", [1.0, 2.0, 3.0, 4.0], [1.0, 2.0, 3.0])


def test_what_could_not_be_measured_is_null_with_its_reason(report: Report) -> None:
    report.figure("peer_rate", None, "1/s", "the peer does not install here")
    report.ratio("us_vs_peer", [1.0, 1.0, 1.0], None, ">= 1", "the peer does not install here")
    report.ratio("over_zero", [1.0, 1.0, 1.0], [0.0, 1.0, 1.0])
    made = report.as_json()
    assert made["figures"] == {"peer_rate": None}
    assert made["ratios"] == {"us_vs_peer": None, "over_zero": None}
    assert made["reasons"]["us_vs_peer"] == "the peer does not install here"
    assert "finite" in made["reasons"]["over_zero"]
    assert "not measured: the peer" in report.table()
    with pytest.raises(ValueError, match="reason"):
        report.figure("silent", None)


def test_reasons_are_left_out_when_everything_was_measured(report: Report) -> None:
    report.figure("a", 1)
    assert set(report.as_json()) == {"name", "figures", "ratios"}


def test_a_name_is_reported_once(report: Report) -> None:
    report.figure("a", 1)
    with pytest.raises(ValueError, match="twice"):
        report.ratio("a", [1.0] * 3, [1.0] * 3)


def test_verdicts(report: Report) -> None:
    report.figure("met", [1.0, 3.0, 3.0], target="<= 3")
    report.figure("missed", 2.9, target=">= 3")
    report.figure("open", 1)
    met, missed, free = (row.verdict for row in report.figures)
    assert (met, missed, free) == ("<= 3.00 met", ">= 3.00 MISSED", "")


@pytest.mark.parametrize("text", ["3", "> 3", ">= fast", "=> 3", ""])
def test_a_target_is_a_bound(text: str) -> None:
    with pytest.raises(ValueError, match="a target is"):
        Target.parse(text)


def test_measures_alternate_and_take_turns_to_start(report: Report) -> None:
    calls: list[str] = []

    def sample(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    samples = report.alternate(3, a=lambda: sample("a"), b=lambda: sample("b"))
    assert calls == ["a", "b", "b", "a", "a", "b"]
    assert samples == {"a": [1.0, 4.0, 5.0], "b": [2.0, 3.0, 6.0]}


def test_quick_cuts_rounds_to_the_fewest_that_show_a_spread() -> None:
    assert Report("a", quick=True).rounds(full=9) == 3
    assert Report("a").rounds(full=9) == 9
    with pytest.raises(ValueError, match="at least 3"):
        Report("a").rounds(full=2)


def test_json_file_holds_one_object_of_plain_numbers(report: Report, tmp_path: Path) -> None:
    report.figure("a", [1.5, 2.5])
    report.write_json(tmp_path / "out.json")
    written = json.loads((tmp_path / "out.json").read_text())
    assert written == {"name": "made-up", "figures": {"a": 2.0}, "ratios": {}}


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (1234567.8, "1,234,568"), (99.94, "99.9"), (2.0, "2.00"), (0.01234, "0.0123")],
)
def test_readable_numbers(number: float, text: str) -> None:
    assert readable(number) == text


def test_a_benchmark_is_a_module_with_run(tmp_path: Path) -> None:
    (tmp_path / "log.py").write_text('"""The log.\n\nMore."""\ndef run(report, quick): ...\n')
    (tmp_path / "parts.py").write_text("def shared(): ...\n")
    assert available(tmp_path) == {"log": "The log."}


def test_no_name_lists_and_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "startup  What `import fairway` costs" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["nothing-like-it"])
    assert "startup" in capsys.readouterr().err


def test_a_run_prints_the_table_and_writes_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {"pass": 10.0, "import fairway": 15.0}
    monkeypatch.setattr("benchmarks.startup.start_ms", lambda code: times.get(code, 30.0))
    assert main(["startup", "--quick", "--json", str(tmp_path / "out.json")]) == 0
    printed = capsys.readouterr()
    assert "import_ms" in printed.out
    assert "round 3/3" in printed.err
    assert "round" not in printed.out
    written = json.loads((tmp_path / "out.json").read_text())
    assert written["figures"] == {"bare_ms": 10.0, "import_ms": 5.0, "log_import_ms": 20.0}
    assert written["ratios"] == {"start_vs_bare": 1.5}


class Pip:
    """Stands in for `subprocess.run` of pip: counts the calls and answers as told."""

    def __init__(self, returncode: int, output: str = "") -> None:
        self.returncode, self.output, self.commands = returncode, output, 0

    def __call__(self, command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        assert "--require-hashes" in command
        assert "--no-deps" in command, "a lock names all; old ones stumble over extras with hashes"
        self.commands += 1
        return subprocess.CompletedProcess(command, self.returncode, self.output)


@pytest.fixture
def peer_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(
        "benchmarks.harness.venv.create", lambda home, **_: home.mkdir(parents=True)
    )
    (tmp_path / "requirements" / "peers").mkdir(parents=True)
    return tmp_path / "requirements" / "peers" / "peer.txt"


def test_a_peer_without_a_lock_has_no_environment(tmp_path: Path) -> None:
    found = peer_environment("peer", root=tmp_path, run=Pip(0))
    assert found.python is None
    assert "requirements/peers/peer.txt" in found.reason


def test_a_peer_that_does_not_install_says_why(tmp_path: Path, peer_lock: Path) -> None:
    peer_lock.write_text("peer==1\n")
    found = peer_environment("peer", root=tmp_path, run=Pip(1, "noise\nERROR: no such release\n"))
    assert found.python is None
    assert found.reason == "pip could not install peer: ERROR: no such release"


def test_what_pip_says_becomes_one_short_line_without_addresses(
    tmp_path: Path, peer_lock: Path
) -> None:
    peer_lock.write_text("peer==1\n")
    said = (
        "ERROR: In --require-hashes mode, all requirements must have their versions pinned with =="
        f" as https://index.example/peer#sha256=0 (from -r {peer_lock} (line 19))\n"
        "WARNING: Location 'file:///wheels/peer/' is ignored\n"
    )
    reason = peer_environment("peer", root=tmp_path, run=Pip(1, said)).reason
    assert reason.startswith("pip could not install peer: ERROR: In --require-hashes mode")
    assert len(reason.splitlines()) == 1
    assert len(reason) < 140
    assert not re.search(r"://|/|\\", reason)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "ERROR: HTTPSConnectionPool(host='pypi.example.com', port=443): Max retries exceeded"
            " with url: /simple/foo/",
            "ERROR: HTTPSConnectionPool(…, …): Max retries exceeded with url: …",
        ),
        ("ERROR: no proxy for foo==1 (10.1.2.3:3128)", "ERROR: no proxy for foo==1 (…)"),
        ("ERROR: no route to 10.1.2.3 (port=3128)", "ERROR: no route to … (…)"),
        ("ERROR: cannot reach cache-2:8080 for foo==1", "ERROR: cannot reach … for foo==1"),
        ("ERROR: Failed to resolve 'pypi.example.com'", "ERROR: Failed to resolve '…'"),
        ("ERROR: no route to [fd00::1:2]:3128 or ::1", "ERROR: no route to … or …"),
        ("ERROR: refused by me:secret@proxy", "ERROR: refused by …"),
        ("ERROR: 404: no foo==1.2.3.4 (line 19)", "ERROR: 404: no foo==1.2.3.4 (line 19)"),
        ("ERROR: No matching release of ruamel.yaml", "ERROR: No matching release of ruamel.yaml"),
    ],
)
def test_addresses_of_every_form_are_left_out(line: str, told: str) -> None:
    assert last_line(f"noise\n{line}\n") == told


def test_a_peer_whose_environment_cannot_be_made_says_so(
    tmp_path: Path, peer_lock: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_pip(home: Path, **_: Any) -> None:
        raise subprocess.CalledProcessError(1, "ensurepip")

    monkeypatch.setattr("benchmarks.harness.venv.create", no_pip)
    peer_lock.write_text("peer==1\n")
    found = peer_environment("peer", root=tmp_path, run=Pip(0))
    assert found.python is None
    assert found.reason == "no environment with pip could be made for peer"


def test_a_peer_is_installed_once_per_lock(tmp_path: Path, peer_lock: Path) -> None:
    pip = Pip(0)
    peer_lock.write_text("peer==1\n")
    for _ in range(2):
        found = peer_environment("peer", root=tmp_path, run=pip)
        assert found.python == tmp_path / ".bench" / "peer" / "bin" / "python"
    assert pip.commands == 1


def test_startup_starts_real_processes() -> None:
    from benchmarks.startup import start_ms

    assert start_ms(f"import sys; assert sys.executable == {sys.executable!r}") > 0
