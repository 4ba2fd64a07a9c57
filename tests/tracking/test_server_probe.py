"""What a server's answer means, found out without MLflow."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from stages.errors import TrackingError
from stages.tracking.credentials import credentials
from stages.tracking.store import connect, probe


class Gate(HTTPServer):
    """Lets one user in; other answers on demand."""

    status, text = 0, ""

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: Gate

    def do_GET(self) -> None:
        given = self.headers.get("Authorization", "")
        known = given in ("Basic " + base64.b64encode("ana:contraseña".encode("latin-1")).decode(), "Bearer a token")
        self.send_response(self.server.status or (404 if known else 401))
        self.send_header("Content-Length", str(len(self.server.text)))
        self.end_headers()
        self.wfile.write(self.server.text.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""


@pytest.fixture
def gate(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    monkeypatch.setenv("HOME", str(workspace))
    with Gate(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def refusal_of(gate: Gate) -> str:
    with pytest.raises(TrackingError) as raised:
        probe(gate.address, timeout=5)
    message = str(raised.value)
    assert message.startswith(gate.address)
    assert "\n" not in message
    return message.removeprefix(gate.address)


def write_credentials(workspace: Path, content: str) -> Path:
    file = workspace / ".mlflow/credentials"
    file.parent.mkdir(exist_ok=True)
    file.write_text(content, encoding="utf-8")
    return file


def test_who_is_let_in(gate: Gate, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "wants a user and a password; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD" in refusal_of(gate)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ana")
    assert "a password is missing (MLFLOW_TRACKING_USERNAME has the other)" in refusal_of(gate)
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "wrong, and never shown")
    assert refusal_of(gate) == (
        " refuses user 'ana': no such user, or the password is wrong "
        "(both come from MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD)"
    )
    monkeypatch.delenv("MLFLOW_TRACKING_PASSWORD")
    file = write_credentials(workspace, "[mlflow]\nmlflow_tracking_password = wrong\nmlflow_tracking_username = eva\n")
    assert refusal_of(gate).endswith(f"(both come from MLFLOW_TRACKING_USERNAME and {file})")
    write_credentials(workspace, "[mlflow]\nmlflow_tracking_password = contraseña\n")
    probe(gate.address, timeout=5)
    assert credentials().basic() == ("ana", "contraseña")
    monkeypatch.delenv("MLFLOW_TRACKING_USERNAME")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "a token")
    probe(gate.address, timeout=5)
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", "another")
    assert "refuses the token in MLFLOW_TRACKING_TOKEN" in refusal_of(gate)


def test_a_damaged_file_of_credentials_is_named(gate: Gate, workspace: Path) -> None:
    file = write_credentials(workspace, "no section = hush\n")
    with pytest.raises(TrackingError) as raised:
        probe(gate.address, timeout=5)
    assert str(raised.value) == f"{file}: not readable (MissingSectionHeaderError)"


def test_a_plug_in_of_mlflow_is_left_to_it(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_AUTH", "kerberos")
    probe(gate.address, timeout=5)


@pytest.mark.parametrize(
    ("status", "text", "words"),
    [
        (403, "Permission denied", ": user 'ana' may not read the experiment noam-lab; ask the server's administrator"),
        (
            403,
            "Invalid Host header - possible DNS rebinding attack detected",
            ": the server does not answer to this name; `noam server --allowed-hosts` adds it",
        ),
        (503, "", " is out of order: it answers 503 Service Unavailable"),
    ],
)
def test_other_refusals(gate: Gate, monkeypatch: pytest.MonkeyPatch, status: int, text: str, words: str) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "ana")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "contraseña")
    probe(gate.address, timeout=5)
    gate.status, gate.text = status, text
    assert refusal_of(gate) == words
    monkeypatch.setenv("MLFLOW_TRACKING_URI", gate.address)
    with pytest.raises(TrackingError):
        connect()


def test_a_server_that_speaks_something_else(workspace: Path) -> None:
    with pytest.raises(TrackingError, match=r"^https://127\.0\.0\.1:1: .*refused$"):
        probe("https://127.0.0.1:1", timeout=5)
