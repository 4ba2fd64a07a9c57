"""Where MLflow's store is said to be: by MLFLOW_TRACKING_URI, else by `noam config store` for this project.

The setting lies in `.runstate/config.json` of the main workspace, which git ignores: a store belongs to whoever works
here, and no result depends on it. Queued and temporary experiments find it there too.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from stages import files, paths
from stages.errors import TrackingError

VARIABLE = "MLFLOW_TRACKING_URI"
SERVERS = ("http", "https")
DATABASES = ("postgresql", "mysql", "mssql")
ALLOWED = "http://HOST:PORT, https://HOST, sqlite:///FILE, or postgresql://, mysql://, mssql:// and a database"
_KEY = "store"


@dataclass(frozen=True)
class Setting:
    """An address and who says so.

    Attributes:
        uri: the address, checked.
        source: MLFLOW_TRACKING_URI, or the file that holds it.
    """

    uri: str
    source: str


def configured() -> Setting | None:
    """The setting that counts; None where neither the environment nor the project has one.

    Raises:
        TrackingError: the address cannot be one of a store, or the file is damaged.
    """
    return of_environment() or of_project()


def of_environment() -> Setting | None:
    """The address in MLFLOW_TRACKING_URI."""
    given = os.environ.get(VARIABLE, "").strip()
    return Setting(check(given, VARIABLE), VARIABLE) if given else None


def of_project() -> Setting | None:
    """The address that `noam config store` has written."""
    file = config_file()
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        given = content.get(_KEY)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AttributeError) as error:
        raise TrackingError(f"{file}: not readable ({error}); `noam config --unset store` removes it") from None
    if given is None:
        return None
    return Setting(check(str(given), str(file)), str(file))


def set_for_project(address: str) -> Setting:
    """Write the address of this project's store.

    Raises:
        TrackingError: it cannot be the address of a store.
    """
    uri = check(address.strip(), "store")
    files.write_json(config_file(), {_KEY: uri})
    return Setting(uri, str(config_file()))


def unset_for_project() -> bool:
    """Remove the setting, a damaged one as well. Returns whether there was one."""
    try:
        config_file().unlink()
    except FileNotFoundError:
        return False
    return True


def config_file() -> Path:
    """The file of the project's settings."""
    return paths.run_state() / "config.json"


def check(address: str, source: str) -> str:
    """The address, if it can be one of a store.

    Args:
        source: who gives it, for the message.

    Raises:
        TrackingError: what is wrong with it, and what is allowed; a password in it is not shown.
    """
    scheme, separator, rest = address.partition("://")
    kind = scheme.partition("+")[0]
    problem = ""
    if not separator:
        problem = f"has no scheme; allowed are {ALLOWED}"
    elif scheme == "sqlite":
        if not rest.startswith("/") or not rest.strip("/").partition("?")[0]:
            problem = "names no file; a database of SQLite is sqlite:///FILE"
    elif scheme not in SERVERS and kind not in DATABASES:
        problem = f"has an unknown scheme; allowed are {ALLOWED}"
    else:
        problem = _problem_of_host(address, scheme)
    if problem:
        raise TrackingError(f"{source}: {without_user(address)!r} {problem}")
    return address


def _problem_of_host(address: str, scheme: str) -> str:
    """What is wrong with an address that names a machine; "" where nothing is."""
    if re.search(r"[\s\x00-\x1f\x7f]", address):
        return "has a space in it"
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host = ""
    if scheme in SERVERS:
        if "@" in address:
            return (
                "holds a user or a password, which would be shown in messages; they belong in MLFLOW_TRACKING_USERNAME "
                "and MLFLOW_TRACKING_PASSWORD, or in ~/.mlflow/credentials"
            )
        if "?" in address or "#" in address:
            return "is the address of a page; give the part before '?' and '#'"
        return "" if host else "names no host, or its port is no number"
    if not host:
        return "names no host, or its port is no number"
    if parts.password is not None:
        return "holds a password, which would be shown in messages; it belongs in ~/.pgpass, ~/.my.cnf or the like"
    return "" if parts.path.strip("/") else "names no database"


def without_user(address: str) -> str:
    """The address without what stands before `@`, in one line of a sensible length."""
    shown = re.sub(r"//.*@", "//…@", address)
    return shown if len(shown) <= 120 else shown[:119] + "…"
