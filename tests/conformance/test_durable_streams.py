"""The public conformance suite of Durable Streams, against our server on a real socket.

It is a package of Node: where Node and npm are, it is installed once into the cache of pytest and
run; elsewhere the test is skipped and says so.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.streams import LONG_POLL_NS, server_process

SUITE = Path(__file__).parent / "durable_streams"
NODE_MAJOR = 20
PATIENCE_MS = 60_000
"""For one test of the suite. The five seconds of its runner can pass on a machine that is busy."""
TESTS = 332
"""How many tests the locked version runs by default; six more are of subscriptions, not offered."""


def output_of(*command: str, where: Path | None = None, **env: str) -> str:
    done = subprocess.run(
        command,
        cwd=where,
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
        timeout=300,
    )
    return done.stdout


@pytest.fixture
def suite(pytestconfig: pytest.Config) -> Path:
    """Where the suite is installed."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            pytest.skip(f"Durable Streams conformance: {tool} is not installed")
    version = output_of("node", "--version").strip()
    if int(version.removeprefix("v").partition(".")[0]) < NODE_MAJOR:
        pytest.skip(f"Durable Streams conformance: Node {version}, needs {NODE_MAJOR} or later")
    assert pytestconfig.cache is not None
    place = pytestconfig.cache.mkdir("durable-streams")
    lock = place / "package-lock.json"
    wanted = (SUITE / lock.name).read_bytes()
    installed = place / "installed.json"
    if not installed.exists() or installed.read_bytes() != wanted:
        for file in SUITE.iterdir():
            shutil.copy(file, place)
        try:
            output_of("npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", where=place)
        except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
            said = str(error.output or "").strip().splitlines()[-1:]
            pytest.skip(f"Durable Streams conformance: npm could not install it: {said}")
        installed.write_bytes(wanted)
    shutil.copy(SUITE / "conformance.test.mjs", place)
    return place


@pytest.mark.timeout(900)
def test_conformance(suite: Path, tmp_path: Path) -> None:
    report_at = tmp_path / "report.json"
    with server_process(tmp_path / "data") as server:
        try:
            said = output_of(
                str(suite / "node_modules" / ".bin" / "vitest"),
                "run",
                "conformance.test.mjs",
                "--reporter=json",
                f"--outputFile={report_at}",
                f"--testTimeout={PATIENCE_MS}",
                where=suite,
                CONFORMANCE_TEST_URL=server.url,
                CONFORMANCE_LONG_POLL_MS=str(LONG_POLL_NS // 1_000_000),
            )
        except subprocess.CalledProcessError as error:
            said = str(error.output)
    assert report_at.exists(), said
    report: dict[str, Any] = json.loads(report_at.read_text())
    failed = [
        f"{test['fullName']}: {test['failureMessages'][0].splitlines()[0]}"
        for file in report["testResults"]
        for test in file["assertionResults"]
        if test["status"] == "failed"
    ]
    assert not failed, "\n".join(failed)
    assert report["numPassedTests"] == TESTS
