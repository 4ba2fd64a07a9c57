"""Who we are to MLflow's server: what MLflow itself will send, known before MLflow is imported.

MLflow takes the user and the password from MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, each of which may
come from `~/.mlflow/credentials` instead; else it sends MLFLOW_TRACKING_TOKEN.
"""

from __future__ import annotations

import configparser
import os
from dataclasses import dataclass
from pathlib import Path

from stages.errors import TrackingError

_USER, _PASSWORD, _TOKEN = "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"
_OTHER_WAYS = ("MLFLOW_TRACKING_AUTH", "MLFLOW_TRACKING_AWS_SIGV4")
SET_BOTH = f"set {_USER} and {_PASSWORD}, or write them into ~/.mlflow/credentials"


@dataclass(frozen=True)
class Credentials:
    """What a request carries.

    Attributes:
        user: name, or "" for none.
        password: of the user, or "" for none.
        token: sent where there are no user and password; "" for none.
        source: where they come from, in words.
        by_plugin: a plug-in of MLflow signs the requests, which we cannot do.
    """

    user: str
    password: str
    token: str
    source: str
    by_plugin: bool

    def basic(self) -> tuple[str, str] | None:
        """User and password, where both are known."""
        return (self.user, self.password) if self.user and self.password else None

    def headers(self) -> dict[str, str]:
        """The header of the token, where that is what is sent."""
        return {"Authorization": f"Bearer {self.token}"} if self.token and self.basic() is None else {}


def credentials() -> Credentials:
    """What the environment and `~/.mlflow/credentials` say.

    Raises:
        TrackingError: the file cannot be read.
    """
    file = Path("~/.mlflow/credentials").expanduser()
    section = _section(file)
    found, sources = {}, []
    for name in (_USER, _PASSWORD):
        given = os.environ.get(name, "")
        found[name] = given or section.get(name.lower(), "")
        if found[name]:
            sources.append(name if given else str(file))
    token = os.environ.get(_TOKEN, "")
    if not (found[_USER] and found[_PASSWORD]) and token:
        sources = [_TOKEN]
    source = " and ".join(dict.fromkeys(sources))
    by_plugin = any(os.environ.get(name) for name in _OTHER_WAYS)
    return Credentials(found[_USER], found[_PASSWORD], token, source, by_plugin)


def refusal(who: Credentials) -> str:
    """What to say where a server does not accept these credentials (status 401)."""
    if who.basic() is not None:
        return f"refuses user {who.user!r}: no such user, or the password is wrong (both come from {who.source})"
    if who.token:
        return f"refuses the token in {_TOKEN}"
    if who.user or who.password:
        missing = "a password" if who.user else "a user"
        return f"wants a user and a password, and {missing} is missing ({who.source} has the other); {SET_BOTH}"
    return f"wants a user and a password; {SET_BOTH}"


def _section(file: Path) -> dict[str, str]:
    parser = configparser.ConfigParser()
    try:
        parser.read(file, encoding="utf-8")
        return dict(parser["mlflow"]) if "mlflow" in parser else {}
    except (configparser.Error, OSError, ValueError) as error:
        raise TrackingError(f"{file}: not readable ({type(error).__name__})") from None
