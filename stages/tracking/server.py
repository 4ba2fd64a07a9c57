"""MLflow's pages on this machine: a lean server, and a link to the prepared view of the runs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from stages import paths
from stages.errors import TrackingError
from stages.tracking import address
from stages.tracking.store import Store, artifact_root, connect, database_file, probe, tracking_uri
from stages.tracking.view import refresh_view, studies_of, view_links

HOST = "127.0.0.1"
_OTHER_PORTS = 50
_START_SECONDS = 120
_STOP_SECONDS = 10
_LEAN = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}


def serve(port: int = 5000) -> int:
    """Serve the runs until Ctrl-C. A busy port is said so at once, and the next free one is taken.

    Where a server is named (MLFLOW_TRACKING_URI, `noam config`), nothing is started: its link is printed.

    Returns:
        The exit code: 0 after Ctrl-C or SIGTERM, else the server's.

    Raises:
        TrackingError: no port is free, the store cannot be used, or the server does not come up.
    """
    uri = tracking_uri()
    if uri.startswith("http"):
        named = address.configured()  # before MLflow writes the address into our environment
        store = connect()
        refresh_view(store)
        print(f"the runs are on the server that {named.source if named else uri} names")
        _print_links(uri, store)
        return 0
    probe(uri, timeout=5)
    chosen = free_port(port)
    if chosen != port:
        print(f"port {port} is busy; taking {chosen} instead (`noam ui --port N` chooses)", flush=True)
    print("starting MLflow, which takes some seconds …", flush=True)
    store = connect()  # creates the database and the experiment, so that the first look is not at an error
    refresh_view(store)
    for note in store.notes:
        print(f"note: {note}", flush=True)
    log = paths.run_state() / "server.log"
    log.unlink(missing_ok=True)
    arguments = ["--backend-store-uri", uri]
    if database_file(uri) is not None:
        arguments += ["--artifacts-destination", str(artifact_root())]
    server = start_mlflow(arguments, chosen, log)
    with interrupted_by(signal.SIGTERM):
        try:
            wait_for_health(server, chosen, log)
            _print_links(f"http://{HOST}:{chosen}", store)
            print("Ctrl-C stops it.", flush=True)
            return server.wait()
        except KeyboardInterrupt:
            return 0
        finally:
            stop_mlflow(server)


def free_port(port: int) -> int:
    """`port`, or the next one that nobody listens on.

    Raises:
        TrackingError: none of the following fifty is free.
    """
    for candidate in range(port, min(port + _OTHER_PORTS, 65536)):
        with socket.socket() as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                attempt.bind((HOST, candidate))
                return candidate
    raise TrackingError(f"ports {port} to {port + _OTHER_PORTS - 1} are busy; choose another with --port")


def wait_for_health(server: subprocess.Popen[bytes], port: int, log: Path, host: str = HOST) -> None:
    """Wait until the server answers.

    Raises:
        TrackingError: it ended, or did not answer for two minutes.
    """
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        if server.poll() is not None:
            raise TrackingError(f"MLflow's server ended with code {server.returncode}; see {log}")
        with suppress(OSError), urllib.request.urlopen(f"http://{host}:{port}/health", timeout=2):
            return
        time.sleep(0.25)
    raise TrackingError(f"MLflow's server does not answer after {_START_SECONDS} s; see {log}")


def _print_links(server: str, store: Store) -> None:
    links = view_links(server, store.experiment_id, studies_of(store))
    width = max(map(len, links)) + 2
    for title, link in links.items():
        print(f"  {title + ':':<{width}}{link}", flush=True)


def start_mlflow(
    arguments: Sequence[str], port: int, log: Path, *, host: str = HOST, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """A lean server of MLflow's, of two processes, in a session of its own.

    Args:
        arguments: of `mlflow server`, besides host, port and workers.
        port: to listen on.
        log: file for what it says, which is added to.
        host: address to listen on.
        environment: further variables; how a client reaches its store is none of the server's business.
    """
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1"]
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("MLFLOW_TRACKING_")}
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "ab") as output:
        return subprocess.Popen(
            [*command, *arguments],
            cwd=paths.main_root(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**inherited, **_LEAN, **(environment or {})},
            start_new_session=True,  # Ctrl-C comes to us, and we end it and its workers
        )


def stop_mlflow(server: subprocess.Popen[bytes]) -> None:
    """End the server and its workers."""
    for number, patience in ((signal.SIGTERM, _STOP_SECONDS), (signal.SIGKILL, _STOP_SECONDS)):
        with suppress(ProcessLookupError):
            os.killpg(server.pid, number)
        with suppress(subprocess.TimeoutExpired):
            server.wait(patience)
            return


@contextmanager
def interrupted_by(*numbers: signal.Signals) -> Iterator[None]:
    """Inside, these signals do what Ctrl-C does; those that are ignored (as by nohup) stay so."""
    caught = [number for number in numbers if signal.getsignal(number) != signal.SIG_IGN]
    previous = {number: signal.signal(number, _interrupt) for number in caught}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
