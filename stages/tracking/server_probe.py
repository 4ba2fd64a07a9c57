"""Does MLflow's server answer, and does it let us in? Asked in seconds, before MLflow is imported."""

from __future__ import annotations

import os

from stages.errors import TrackingError
from stages.tracking.credentials import credentials, refusal

_PROBE_SECONDS = 4.0


def probe_server(uri: str, experiment: str, timeout: float) -> None:
    """Ask for the experiment, as MLflow will: with its library, and as the user that it will be.

    A server may say that it is well and still hang at its database, or not know us.

    Args:
        uri: of the server.
        experiment: a name, which need not exist yet.
        timeout: seconds, of which the probe takes four at most.

    Raises:
        TrackingError: it is away, does not answer in time, is out of order or does not let us in.
    """
    import requests

    who = credentials()
    try:
        answer = requests.get(
            uri.rstrip("/") + "/api/2.0/mlflow/experiments/get-by-name",
            params={"experiment_name": experiment},
            auth=who.basic(),
            headers=who.headers(),
            timeout=min(timeout, _PROBE_SECONDS),
            verify=_verified(),
            cert=os.environ.get("MLFLOW_TRACKING_CLIENT_CERT_PATH") or None,
        )
    except requests.Timeout:
        raise TrackingError(f"{uri} does not answer") from None
    except (requests.RequestException, OSError) as error:
        raise TrackingError(f"{uri}: {_reason(error)}") from None
    if answer.status_code == 401 and not who.by_plugin:
        raise TrackingError(f"{uri} {refusal(who)}")
    if answer.status_code == 403 and "Invalid Host header" in answer.text:
        raise TrackingError(f"{uri}: the server does not answer to this name; `noam server --allowed-hosts` adds it")
    if answer.status_code == 403 and not who.by_plugin:
        may_not = f"user {who.user!r} may not read the experiment {experiment}" if who.user else "access is forbidden"
        raise TrackingError(f"{uri}: {may_not}; ask the server's administrator")
    if answer.status_code >= 500:
        raise TrackingError(f"{uri} is out of order: it answers {answer.status_code} {answer.reason}")


def _verified() -> bool | str:
    """How the certificate of a server is checked, by the same variables as in MLflow."""
    if os.environ.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("true", "1"):
        return False
    return os.environ.get("MLFLOW_TRACKING_SERVER_CERT_PATH") or True


def _reason(error: Exception) -> str:
    """The innermost reason of an error of requests, which wraps several."""
    inner = error
    while True:
        within = getattr(inner, "reason", None) or (inner.args[0] if inner.args else None)
        if not isinstance(within, Exception):
            break
        inner = within
    text = str(inner).strip() or type(inner).__name__
    return text.rpartition("connection: ")[2].splitlines()[0][:200]
