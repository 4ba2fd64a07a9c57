"""A PostgreSQL cluster of our own in a folder, for the team's server: made once, started and ended with it.

It listens on 127.0.0.1 alone, on a port that is free at each start, and wants a password, which is generated and lies
in a file that only its owner may read. That file is PostgreSQL's own password file (PGPASSFILE), so that no address, no
argument and no log has the password in it. (A Unix socket would need no port, but its path may have 107 bytes at most.)
"""

from __future__ import annotations

import os
import pwd
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stages.errors import TrackingError

HOST = "127.0.0.1"
_SUPERUSER, _USER = "postgres", "mlflow"
_START_SECONDS = 120.0  # after a crash it replays its log first
_STOP_SECONDS = 30.0
_PLACES = "usr/lib/postgresql/*/bin/initdb"  # Debian keeps its programs off PATH
_INSTALL = (
    "the team's server needs PostgreSQL; install it (Debian, Ubuntu: `apt-get install postgresql`, "
    "Fedora: `dnf install postgresql-server`, macOS: `brew install postgresql`)"
)


class Cluster:
    """The cluster in a folder, with a user who owns its databases and no more.

    Attributes:
        folder: of the team's server; the cluster is `postgres/` in it.
        log: what PostgreSQL says.
        password_file: for PGPASSFILE.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "logs/postgres.log"
        self.password_file = folder / "pgpass"
        self._data = folder / "postgres"
        self._programs = _programs(self._version())
        self._account = _account()
        self._process: subprocess.Popen[bytes] | None = None
        self._port = 0

    def start(self, port: int, databases: Sequence[str]) -> None:
        """Make the cluster if there is none, start it, and create the user and the databases that are missing.

        A server of an earlier session that was killed outright is ended first.

        Args:
            port: a free one.
            databases: their names.

        Raises:
            TrackingError: the cluster cannot be made, does not come up, or another program uses it.
        """
        self._create()
        self._end_former()
        self._port = port
        settings = {"listen_addresses": HOST, "port": str(port), "unix_socket_directories": ""}
        command = [str(self._programs / "postgres"), "-D", str(self._data)]
        command += [word for key, value in settings.items() for word in ("-c", f"{key}={value}")]
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "ab") as output:
            self._process = subprocess.Popen(
                command,
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C comes to us, and we end MLflow first
                **self._identity(),
            )
        self._prepare(databases)

    def stop(self) -> None:
        """End it: sessions are cut off, everything committed is on disk."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGINT)  # a fast shutdown, in PostgreSQL's words
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.send_signal(signal.SIGQUIT)  # at once; the next start recovers
            self._process.wait(_STOP_SECONDS)

    def ended(self) -> bool:
        """It was started and is no more."""
        return self._process is not None and self._process.poll() is not None

    def uri(self, database: str) -> str:
        """SQLAlchemy's address of a database, without the password."""
        return f"postgresql+psycopg://{_USER}@{HOST}:{self._port}/{database}"

    def _version(self) -> str:
        """The major version that made the cluster; "" where there is none yet."""
        try:
            return (self._data / "PG_VERSION").read_text(encoding="ascii").strip()
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise TrackingError(f"{self._data}: {error.strerror}; it belongs to another user") from None

    def _identity(self) -> dict[str, Any]:
        """Arguments of subprocess that make a program run as the one who owns the cluster."""
        if self._account is None:
            return {}
        return {"user": self._account.pw_uid, "group": self._account.pw_gid, "extra_groups": []}

    def _call(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self._programs / program), *arguments],
            cwd="/",  # the other user may not be allowed where we are
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            **self._identity(),
        )

    def _create(self) -> None:
        """Run initdb beside the cluster's place and rename: a kill leaves nothing half made."""
        if (self._data / "PG_VERSION").exists():
            if not self.password_file.is_file():
                raise TrackingError(
                    f"{self.password_file}: not there, and the cluster beside it cannot be opened without"
                )
            return
        password, beside = secrets.token_urlsafe(24), self.folder / "postgres.tmp"
        shutil.rmtree(beside, ignore_errors=True)
        shutil.rmtree(self._data, ignore_errors=True)
        beside.mkdir(mode=0o700)
        given = self.folder / ".password.tmp"
        write_private(given, password + "\n")
        try:
            if self._account is not None:
                for path in (beside, given):
                    os.chown(path, self._account.pw_uid, self._account.pw_gid)
            arguments = [
                "--username",
                _SUPERUSER,
                "--auth",
                "scram-sha-256",
                "--pwfile",
                str(given),
                "--encoding",
                "UTF8",
            ]
            done = self._call("initdb", "--pgdata", str(beside), *arguments, "--no-locale", "--data-checksums")
        finally:
            given.unlink(missing_ok=True)
        if done.returncode:
            hint = ""
            if self._account is not None and "Permission denied" in done.stderr:
                hint = f" (user {self._account.pw_name} must be allowed to enter {self.folder}; --folder names another)"
            raise TrackingError(f"initdb: {_last_line(done.stderr or done.stdout)}{hint}")
        write_private(self.password_file, f"{HOST}:*:*:*:{password}\n")
        beside.rename(self._data)

    def _end_former(self) -> None:
        """End the server of an earlier session that was killed and could not do so."""
        if (
            not (self._data / "postmaster.pid").exists()
            or self._call("pg_ctl", "status", "-D", str(self._data)).returncode
        ):
            return  # a file that was left behind is PostgreSQL's own business
        done = self._call("pg_ctl", "stop", "-D", str(self._data), "-m", "fast", "-w", "-t", str(round(_STOP_SECONDS)))
        if done.returncode:
            raise TrackingError(f"PostgreSQL in {self._data} runs already and does not end: {_last_line(done.stderr)}")

    def _prepare(self, databases: Sequence[str]) -> None:
        """Wait until it answers; then the user and the databases."""
        import psycopg
        from psycopg import sql

        until = time.monotonic() + _START_SECONDS
        password = self.password_file.read_text(encoding="ascii").strip().rpartition(":")[2]
        where = {"host": HOST, "port": self._port, "user": _SUPERUSER, "password": password, "dbname": "postgres"}
        while True:
            try:
                connection = psycopg.connect(**where, autocommit=True, connect_timeout=5)  # type: ignore[arg-type]
                break
            except psycopg.OperationalError as error:
                if self.ended():
                    raise TrackingError(
                        f"PostgreSQL ended at its start: {self._last_words()}; see {self.log}"
                    ) from None
                if "authentication failed" in str(error):
                    raise TrackingError(f"{self.password_file}: not the password of the cluster beside it") from None
                if time.monotonic() > until:
                    raise TrackingError(
                        f"PostgreSQL does not answer after {_START_SECONDS:.0f} s; see {self.log}"
                    ) from None
                time.sleep(0.2)
        with connection:
            if not connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (_USER,)).fetchone():
                connection.execute(
                    sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(sql.Identifier(_USER), sql.Literal(password))
                )
            for name in databases:
                if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone():
                    owned = sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(name), sql.Identifier(_USER))
                    connection.execute(owned)

    def _last_words(self) -> str:
        return _last_line(self.log.read_text(encoding="utf-8", errors="replace"))


def write_private(path: Path, content: str) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    beside.unlink(missing_ok=True)
    with open(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def _programs(version: str) -> Path:
    """The folder with PostgreSQL's programs: of that major version, else the newest.

    Raises:
        TrackingError: there are none, or none of the version that made the cluster.
    """
    on_path = shutil.which("initdb")
    places = [Path(on_path).resolve().parent] if on_path else []
    places += [path.parent for path in Path("/").glob(_PLACES)]
    found: dict[int, Path] = {}
    for place in places:
        done = subprocess.run([place / "initdb", "--version"], capture_output=True, text=True, check=False)
        number = re.search(r"\) (\d+)", done.stdout)
        if number:
            found.setdefault(int(number[1]), place)
    if not found:
        raise TrackingError(_INSTALL)
    if not version:
        return found[max(found)]
    if version not in map(str, found):
        there = ", ".join(map(str, sorted(found)))
        raise TrackingError(
            f"the cluster was made by PostgreSQL {version}, and here is {there}; install {version}, or see pg_upgrade"
        )
    return found[int(version)]


def _account() -> pwd.struct_passwd | None:
    """Who runs PostgreSQL, which refuses to run as root; None for whoever we are."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam("postgres")
    except KeyError:
        raise TrackingError(
            "PostgreSQL refuses to run as root, and there is no user postgres here; start it as another user"
        ) from None


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no reason given"
