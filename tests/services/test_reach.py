"""What listens, and what is connected to, while the pipeline and its servers run: this machine alone."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.pipeline.project import Project, clean_environment, copy_project

pytestmark = pytest.mark.services
# What tells MLflow and DVC of a test or of continuous integration, where they send nothing anyway.
SIGNS = ("PYTEST_CURRENT_TEST", "CI", "GITHUB_ACTIONS", "MLFLOW_DISABLE_TELEMETRY", "DO_NOT_TRACK", "DVC_NO_ANALYTICS")
BARE = ["env", *(part for name in SIGNS for part in ("-u", name))]
HERE = {"127.0.0.1", "::1", "localhost"}
# Python's own audit events, of every process that has this module on its path.
HOOK = """
import json, os, sys
def record(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto", "socket.bind"):
        address = arguments[0] if event in ("socket.getaddrinfo", "socket.gethostbyname") else arguments[1]
        with open(os.environ["RECORD"], "a") as file:
            file.write(json.dumps([event, repr(address), " ".join(sys.argv)[:200]]) + "\\n")
sys.addaudithook(record)
"""


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, dict[str, str], Path]:
    """A project that has run once, the environment in which it did, and the record of its connections."""
    folder = tmp_path_factory.mktemp("watched")
    (folder / "hook").mkdir()
    (folder / "hook/sitecustomize.py").write_text(HOOK, encoding="utf-8")
    record = folder / "record.jsonl"
    project = copy_project(folder / "my tree", epochs=2, eval_every=1, d_model=16, hidden=16)
    environment = {"PYTHONPATH": os.fspath(folder / "hook"), "RECORD": os.fspath(record)}
    project.run(*BARE, "dvc", "repro", **environment)
    return project, environment, record


def events(record: Path) -> list[tuple[str, str, str]]:
    lines = record.read_text(encoding="utf-8").splitlines() if record.exists() else []
    return [tuple(json.loads(line)) for line in lines]


def elsewhere(found: list[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Those that name another place than this machine: paths of Unix sockets and AF_UNIX tuples are here."""
    names = {event: re.match(r"\(?'([^']*)'", event[1]) for event in found}
    return [event for event, name in names.items() if name is None or not (name[1] in HERE or name[1].startswith("/"))]


@contextmanager
def started(project: Project, environment: dict[str, str], *arguments: str) -> Iterator[tuple[psutil.Process, str]]:
    """A server of ours and its first words about its address."""
    command = [*BARE, sys.executable, "-m", "stages.cli", *arguments]
    server = subprocess.Popen(
        command, cwd=project.root, env=clean_environment(**environment), stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        for line in server.stdout:
            if found := re.search(r"http://127\.0\.0\.1:\d+", line):
                break
        yield psutil.Process(server.pid), found[0] if found else ""
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=60)


def listening(process: psutil.Process) -> set[str]:
    """The addresses on which a process and those below it listen."""
    family = [process, *process.children(recursive=True)]
    return {
        one.laddr.ip
        for member in family
        for one in member.net_connections()
        if one.status == psutil.CONN_LISTEN or (one.type == socket.SOCK_DGRAM and one.laddr)
    }


def test_the_hook_sees_what_connects(watched: tuple[Project, dict[str, str], Path]) -> None:
    project, environment, record = watched
    script = "import socket; socket.create_connection(('localhost', 9), 1)"
    project.run(sys.executable, "-c", script, check=False, **environment)
    assert any("localhost" in address for _, address, argv in events(record) if argv == "-c")
    assert elsewhere([("socket.connect", "('192.0.2.1', 443)", ""), ("socket.getaddrinfo", "'example.org'", "")])


def test_a_run_connects_to_nothing_elsewhere(watched: tuple[Project, dict[str, str], Path]) -> None:
    project, environment, record = watched
    assert len(project.runs()) == 1  # it went to MLflow's store
    project.run(*BARE, "noam", "sync", **environment)
    assert any("sync.py" in argv for _, _, argv in events(record))  # MLflow was at work under the hook's eyes
    assert elsewhere(events(record)) == []


@pytest.mark.parametrize("command", ["ui", "serve"])
def test_servers_listen_on_this_machine_alone(watched: tuple[Project, dict[str, str], Path], command: str) -> None:
    project, environment, record = watched
    port = "52391" if command == "ui" else "52491"
    with started(project, environment, command, "--port", port) as (process, address):
        assert address
        time.sleep(1)
        assert listening(process) == {"127.0.0.1"}
    assert elsewhere(events(record)) == []
