"""The audit of the locked versions: what counts as clean, and what does not."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import date
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.conftest import ROOT, script

TODAY = date(2026, 6, 1)
FOUND = {"name": "web", "version": "1.0", "vulns": [{"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["1.1"]}]}
CLEAN = {"name": "tidy", "version": "2.0", "vulns": []}
LOST = {"name": "lost", "skip_reason": "not found"}
AFFECTED = {
    "package": {"name": "web", "ecosystem": "PyPI"},
    "ranges": [{"type": "ECOSYSTEM", "events": [{"fixed": "1.1"}]}],
}


@pytest.fixture(scope="module")
def audit() -> ModuleType:
    """The script, as a module."""
    return script("audit")


class Feed(BaseHTTPRequestHandler):
    """A service that answers as OSV does, on this machine: it knows one thing about `web`."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        known = {"vulns": [{"id": "PYSEC-1", "summary": "bad", "affected": [AFFECTED]}]}
        body = json.dumps(known if asked["package"]["name"] == "web" else {}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def feed() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Feed) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/query"
        server.shutdown()
        thread.join()


def judged(audit: ModuleType, packages: list[dict[str, Any]], exceptions: str = "") -> tuple[list[str], int]:
    lines, code = audit.judge(packages, audit.exceptions(exceptions), TODAY)
    return lines, code


def test_what_was_looked_up_and_has_nothing_is_clean(audit: ModuleType) -> None:
    assert judged(audit, [CLEAN]) == (["1 of 1 versions looked up, 0 vulnerabilities known, 0 excepted"], 0)


def test_what_could_not_be_looked_up_is_not_clean(audit: ModuleType) -> None:
    assert judged(audit, [CLEAN, LOST])[1] == 2
    lines, code = judged(audit, [LOST])
    assert code == 2
    assert "so nothing was checked" in lines[1]
    assert lines[-1] == "0 of 1 versions looked up, 0 vulnerabilities known, 0 excepted"
    assert judged(audit, [])[1] == 2


def test_an_exception_holds_until_its_day(audit: ModuleType) -> None:
    assert judged(audit, [FOUND, CLEAN])[1] == 1
    for name in ("PYSEC-1", "CVE-1"):
        lines, code = judged(audit, [FOUND], f"# why\n\n{name} 2026-06-01 web: no page is served\n")
        assert code == 0
        assert lines[0] == "excepted until 2026-06-01: web 1.0: PYSEC-1, CVE-1: web: no page is served"
    lines, code = judged(audit, [FOUND], "PYSEC-1 2026-05-31 web: no page is served")
    assert code == 1
    assert lines[0] == "known: web 1.0: PYSEC-1, CVE-1; mended in 1.1; the exception ended on 2026-05-31"


def test_an_exception_for_nothing_is_named(audit: ModuleType) -> None:
    lines, code = judged(audit, [CLEAN], "PYSEC-9 2026-12-31 web: gone")
    assert (code, lines[0]) == (0, "note: PYSEC-9 in audit-exceptions is of no use any more")


@pytest.mark.parametrize("line", ["PYSEC-1", "PYSEC-1 soon web: x", "PYSEC-1 2026-12-31"])
def test_a_line_that_is_no_exception_is_named(audit: ModuleType, line: str) -> None:
    with pytest.raises(ValueError, match=r"audit-exceptions, line 2: .* expected ID YYYY-MM-DD REASON"):
        audit.exceptions(f"# first\n{line}\n")


def test_the_exceptions_of_the_repository_are_of_locked_packages(audit: ModuleType) -> None:
    locked = [line.partition("==")[0] for line in audit.LOCKED.read_text(encoding="utf-8").splitlines()]
    for name, exemption in audit.exceptions(audit.EXCEPTIONS.read_text(encoding="utf-8")).items():
        assert exemption.reason.partition(":")[0] in locked, name


def test_pip_audit_finds_what_a_service_knows(audit: ModuleType, feed: str, tmp_path: Path) -> None:
    locked = tmp_path / "locked.txt"
    locked.write_text("web==1.0\ntidy==2.0\n", encoding="utf-8")
    lines, code = judged(audit, audit.ask(locked, ["-s", "osv", "--osv-url", feed]))
    assert code == 1
    assert lines == [
        "known: web 1.0: PYSEC-1; mended in 1.1",
        "2 of 2 versions looked up, 1 vulnerabilities known, 0 excepted",
    ]


def test_a_service_that_is_away_is_one_line_and_an_error() -> None:
    command = [sys.executable, ROOT / ".ci/audit.py", "-s", "osv", "--osv-url", "http://127.0.0.1:9/query"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the service of vulnerabilities did not answer, so nothing was checked: ")
    assert done.stderr.count("\n") == 1
