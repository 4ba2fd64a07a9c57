"""A store for a team on one machine: MLflow's server with passwords, PostgreSQL behind it, artifacts through it.

folder/
    postgres/        the cluster (`stages.tracking.cluster`)
    artifacts/       figures, models and files of the runs
    logs/            what PostgreSQL and MLflow say
    pgpass, secret-key, basic_auth.ini, admin-password        generated; for the owner's eyes alone

Both programs are children of ours and end with us. Where we are killed outright, the next start ends what is left.
"""

from __future__ import annotations

import importlib.util
import json
import os
import secrets
import signal
import socket
import subprocess
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from stages.errors import TrackingError
from stages.execution import Process
from stages.tracking.cluster import Cluster, write_private
from stages.tracking.server import interrupted_by, start_mlflow, stop_mlflow, wait_for_health

PASSWORD = "NOAM_SERVER_PASSWORD"  # noqa: S105 (a name)
ADMINISTRATOR = "admin"
SHORTEST = 12  # MLflow's own rule
# Members may read, write and log into every experiment, since a team compares its runs. They may not delete what is not
# theirs or hand out permissions: that takes MANAGE, which the creator of an experiment and the administrator have.
DEFAULT_PERMISSION = "EDIT"
_WELL_KNOWN = (
    "password",
    "admin",
    "changeme",
    "mlflow",
    "secret",
    "default",
    "letmein",
    "qwerty",
    "example",
)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104 (compared with, not bound to)
_DATABASES = ("mlflow", "mlflow_auth")


def serve_team(folder: Path, host: str = "127.0.0.1", port: int = 5000, names: Sequence[str] = ()) -> int:
    """Serve until Ctrl-C or SIGTERM.

    Args:
        folder: for everything that lasts; made on the first start.
        host: address to listen on.
        port: to listen on.
        names: under which the team reaches the server, where they differ from this machine's own.

    Returns:
        0 after Ctrl-C or SIGTERM.

    Raises:
        TrackingError: something is missing, the port is busy, the password is a weak one, another server runs in the
            folder, or one of the two programs ended.
    """
    _check_installed()
    folder = folder.absolute()
    password = os.environ.get(PASSWORD, "")
    if password:
        check_password(password, PASSWORD)
    _make_folder(folder)
    lock = FileLock(folder / "server.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise TrackingError(f"{folder}: another `noam server` runs in this folder") from None
    try:
        _end_former(folder)
        _check_port(host, port)
        cluster = Cluster(folder)
        with interrupted_by(signal.SIGTERM, signal.SIGHUP):
            try:
                return _serve(cluster, password, host, port, names)
            except KeyboardInterrupt:
                return 0
            finally:
                cluster.stop()
    finally:
        lock.release()


def check_password(password: str, source: str) -> None:
    """Refuse a password of the administrator that is short or that everybody tries first.

    Raises:
        TrackingError: what is wrong with it; it is not shown.
    """
    if len(password) < SHORTEST:
        raise TrackingError(f"{source}: {len(password)} characters; a password has at least {SHORTEST}")
    rest = "".join(filter(str.isalnum, password.lower()))
    for word in _WELL_KNOWN:
        rest = rest.replace(word, "")
    if len(set(rest)) < 5 or rest.isdecimal():  # what is left of password1234 is 1234
        raise TrackingError(f"{source}: one of the passwords that everybody tries first; choose another")


def _serve(cluster: Cluster, password: str, host: str, port: int, names: Sequence[str]) -> int:
    folder = cluster.folder
    print("starting PostgreSQL and MLflow, which takes some seconds …", flush=True)
    cluster.start(_free_port(), _DATABASES)
    generated = not password
    password = password or _kept(folder / "admin-password", 18)
    own = _own_names(host)
    allowed = [*own, *filter(None, names)]
    log = folder / "logs/mlflow.log"
    arguments = ["--app-name", "basic-auth", "--serve-artifacts", "--artifacts-destination", str(folder / "artifacts")]
    server = start_mlflow(
        [*arguments, "--uvicorn-opts=--no-access-log"],  # a line for each request, for ever
        port,
        log,
        host=host,
        environment=_environment(cluster, password, allowed, port),
    )
    left_over = folder / "mlflow.json"
    try:
        left_over.write_text(Process.of(psutil.Process(server.pid)).model_dump_json() + "\n", encoding="utf-8")
        wait_for_health(server, port, log, _reached_at(host))
        _say_what_there_is(folder, password, generated, host, port, own[-1])
        while True:
            with suppress(subprocess.TimeoutExpired):
                raise TrackingError(f"MLflow's server ended with code {server.wait(1)}; see {log}")
            if cluster.ended():
                raise TrackingError(f"PostgreSQL ended; see {cluster.log}")
    finally:
        stop_mlflow(server)
        left_over.unlink(missing_ok=True)


def _environment(cluster: Cluster, password: str, allowed: Sequence[str], port: int) -> dict[str, str]:
    """What MLflow's server is told by variables: no secret is among its arguments, which everybody here can read."""
    settings = {
        "default_permission": DEFAULT_PERMISSION,
        "database_uri": cluster.uri(_DATABASES[1]),
        "admin_username": ADMINISTRATOR,
        # Checking a password costs tens of milliseconds a request. There is one worker, which hears of each change.
        "auth_cache_ttl_seconds": "300",
    }
    ini = cluster.folder / "basic_auth.ini"
    write_private(ini, "[mlflow]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items()))
    told = {
        "PGPASSFILE": str(cluster.password_file),
        "MLFLOW_BACKEND_STORE_URI": cluster.uri(_DATABASES[0]),
        "MLFLOW_AUTH_CONFIG_PATH": str(ini),
        "MLFLOW_AUTH_ADMIN_PASSWORD": password,
        "MLFLOW_FLASK_SERVER_SECRET_KEY": _kept(cluster.folder / "secret-key", 32),
        # MLflow refuses requests by other names of this machine, and changes asked for by pages under other names.
        "MLFLOW_SERVER_ALLOWED_HOSTS": ",".join(host for name in allowed for host in (name, f"{name}:{port}")),
        "MLFLOW_SERVER_CORS_ALLOWED_ORIGINS": ",".join(
            origin
            for name in allowed
            for origin in (f"https://{name}", f"http://{name}:{port}", f"https://{name}:{port}")
        ),
        "NO_COLOR": "1",
    }
    return {**told, PASSWORD: ""}


def _say_what_there_is(folder: Path, password: str, generated: bool, host: str, port: int, name: str) -> None:
    address = f"http://{_reached_at(host) if host in _LOOPBACK else name}:{port}"
    source = str(folder / "admin-password") if generated else PASSWORD
    if not _is_password(f"http://{_reached_at(host)}:{port}", password):
        print(f"note: the administrator has had another password since an earlier start; {source} changes nothing")
    print(f"the team's store is at {address}; user {ADMINISTRATOR}, password in {source}")
    print(f"  new members:   {address}/signup, as the administrator; they may write to every experiment")
    print(f"  in a project:  noam config store {address}")
    print("                 export MLFLOW_TRACKING_USERNAME=… MLFLOW_TRACKING_PASSWORD=… (or ~/.mlflow/credentials)")
    print(f"  to back up:    {folder}, while the server is stopped")
    if host not in _LOOPBACK:
        print(
            "note: passwords and results travel in clear text; put a proxy with TLS in front, or use a trusted network"
        )
    if os.geteuid() == 0:
        print("note: MLflow runs as root here; a user of its own would be enough")
    print("Ctrl-C stops it.", flush=True)


def _is_password(address: str, password: str) -> bool:
    """The administrator's password is this one."""
    login = b64encode(f"{ADMINISTRATOR}:{password}".encode()).decode()
    request = urllib.request.Request(  # noqa: S310 (ours)
        f"{address}/api/2.0/mlflow/users/get?username={ADMINISTRATOR}", headers={"Authorization": f"Basic {login}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:  # noqa: S310
            return bool(json.load(answer))
    except urllib.error.HTTPError as error:
        return error.code != 401
    except (OSError, ValueError):
        return True  # not known


def _check_installed() -> None:
    missing = [name for name in ("psycopg", "flask_wtf") if importlib.util.find_spec(name) is None]
    if missing:
        raise TrackingError(
            f"the team's server needs {' and '.join(missing)}: pip install 'noam-lab[server]', "
            "in a clone: pip install -e '.[server]'"
        )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o711 if os.geteuid() == 0 else 0o700)  # of root: the user postgres has to pass through
        (folder / "artifacts").mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise TrackingError(f"{folder}: {error.strerror}; --folder names another") from None


def _kept(file: Path, length: int) -> str:
    """The secret in a file, made up of so many random bytes when it is first asked for."""
    if not file.is_file():
        write_private(file, secrets.token_urlsafe(length) + "\n")
    return file.read_text(encoding="utf-8").strip()


def _end_former(folder: Path) -> None:
    """End MLflow's server of an earlier session that was killed and could not do so."""
    file = folder / "mlflow.json"
    try:
        former = Process.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if former.alive():
        print("ending what is left of a server that was killed …", flush=True)
        with suppress(psutil.Error):
            process = psutil.Process(former.pid)
            family = [process, *process.children(recursive=True)]
            for one in family:
                with suppress(psutil.NoSuchProcess):
                    one.terminate()
            for one in psutil.wait_procs(family, timeout=10)[1]:
                with suppress(psutil.NoSuchProcess):
                    one.kill()
    file.unlink(missing_ok=True)


def _check_port(host: str, port: int) -> None:
    """Say at once what MLflow would say after half a minute."""
    try:
        kind, *_, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError:
        raise TrackingError(f"--host {host}: no address of this machine") from None
    with socket.socket(kind, socket.SOCK_STREAM) as attempt:
        attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            attempt.bind(place)
        except PermissionError:
            raise TrackingError(f"port {port}: only root may listen there; choose another with --port") from None
        except OSError as error:
            busy = f"port {port} is busy; choose another with --port"
            raise TrackingError(busy if "in use" in str(error) else f"--host {host}: {error.strerror}") from None


def _free_port() -> int:
    with socket.socket() as attempt:
        attempt.bind(("127.0.0.1", 0))
        return int(attempt.getsockname()[1])


def _reached_at(host: str) -> str:
    """The name by which this machine reaches a server that listens on `host`."""
    name = "127.0.0.1" if host in _EVERYWHERE else host
    return f"[{name}]" if ":" in name else name


def _own_names(host: str) -> list[str]:
    """The names by which a server that listens on `host` may be called: the machine's own, the likeliest last."""
    here = ["localhost", "127.0.0.1", "[::1]"]
    if host in _LOOPBACK:
        return here
    if host not in _EVERYWHERE:
        return [*here, _reached_at(host)]
    families = (socket.AF_INET, socket.AF_INET6)
    numbers = [one.address for several in psutil.net_if_addrs().values() for one in several if one.family in families]
    numbers = [f"[{number}]" if ":" in number else number for number in numbers if "%" not in number]
    return list(dict.fromkeys([*here, *numbers, socket.getfqdn(), socket.gethostname()]))
