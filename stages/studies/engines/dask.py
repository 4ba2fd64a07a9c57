"""Variants on the workers of a Dask scheduler: `noam study run FILE --on dask://HOST:PORT`, or `tls://HOST:PORT`.

Certificates for `tls://` come from Dask's own configuration. What a worker does is in a process of its own, so that a
worker with one thread runs one variant at a time, with as many of its seeds at once as it has cores.
"""

from __future__ import annotations

import logging
import platform
import queue
import socket
import time
import uuid
from typing import Any

from stages.errors import StudyError
from stages.studies.engines.base import Event
from stages.studies.jobs import Say
from stages.studies.messages import Result, Work
from stages.studies.remote import run_variant

_CONNECT_SECONDS, _PAUSE, _LOST_SECONDS = 20, 0.5, 15.0
_ANYWHERE = ("0.0.0.0", "[::]", "::", "")  # noqa: S104 (what is warned of)
_CERTIFICATES = "DASK_DISTRIBUTED__COMM__TLS__CA_FILE, …__CLIENT__CERT and …__CLIENT__KEY, or `distributed.comm.tls`"


class Dask:
    """The workers of a scheduler.

    Args:
        address: `dask://HOST:PORT` or `tls://HOST:PORT`.
        say: is told lines.

    Raises:
        StudyError: Dask is not installed, no scheduler answers, or there is no certificate.
    """

    def __init__(self, address: str, say: Say) -> None:
        try:
            import distributed
        except ImportError:
            raise StudyError(address, "Dask is not installed; `pip install 'noam-lab[dask]'` brings it") from None
        _silence()
        self.name = address
        self._say, self._waits = say, False
        encrypted = address.startswith("tls://")
        security = distributed.Security(require_encryption=True) if encrypted else None
        if security is not None and not security.tls_ca_file:
            raise StudyError(address, f"expected certificates in Dask's configuration: {_CERTIFICATES}")
        host, _, port = address.partition("://")[2].rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()  # Dask would try for long
            self._client = distributed.Client(
                address if encrypted else f"tcp://{address.partition('://')[2]}",
                security=security,
                timeout=_CONNECT_SECONDS,
                set_as_default=False,
            )
        except (OSError, TimeoutError, ValueError, TypeError, OverflowError) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise StudyError(address, f"no scheduler of Dask answers there ({reason})") from None
        self._topic = f"noam-{uuid.uuid4().hex}"
        self._found: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._began: set[str] = set()
        self._futures: dict[str, Any] = {}
        self._tokens: dict[str, str] = {}  # of a task the key of its work
        self._silent = 0.0
        self._client.subscribe_topic(self._topic, self._told)
        self._warn()

    def submit(self, work: Work) -> None:
        token = f"{work.name}-{work.key[:8]}-{uuid.uuid4().hex[:8]}"
        future = self._client.submit(_task, work, self._topic, token, key=token, pure=False)
        self._futures[token], self._tokens[token] = future, work.key
        future.add_done_callback(lambda ended: self._found.put((token, ended)))

    def events(self) -> list[Event]:
        self._check()
        try:
            token, content = self._found.get(timeout=_PAUSE)
        except queue.Empty:
            return []
        key = self._tokens.get(token)
        if key is None or token not in self._futures:
            return []
        if isinstance(content, str):
            self._began.add(token)
            self._count_deaths(token)
            return [Event(key, "started", host=content)]
        return self._ended(token, key, content)

    def close(self) -> None:
        self._client.close(timeout=5)

    def _ended(self, token: str, key: str, future: Any) -> list[Event]:
        from distributed import KilledWorker

        if future.status in ("cancelled", "lost", "pending"):
            if self._is_gone():
                raise self._lost()
            why = "the scheduler forgot it"
        elif future.status == "finished":
            result: Result = future.result()
            del self._futures[token]
            return [Event(key, "ended", host=result.host, result=result)]
        else:
            error = future.exception()
            worker = getattr(error.last_worker, "address", "") if isinstance(error, KilledWorker) else ""
            why = f"worker {worker} died" if worker else f"{type(error).__name__}: {error}".splitlines()[0]
            if isinstance(error, KilledWorker):
                del self._futures[token]
                return [Event(key, "lost", why=why, began=token in self._began)]
        del self._futures[token]
        return [Event(key, "lost", why=why)]

    def _count_deaths(self, token: str) -> None:
        """Let the death of its worker end a task, instead of the scheduler starting it again without a word.

        One that had not begun is the scheduler's to place anew.
        """
        try:
            self._client.run_on_scheduler(_tried_once, token)
        except Exception as error:
            self._say(f"note: the scheduler will start a variant of a dead worker again itself, uncounted ({error})")

    def _told(self, event: tuple[float, dict[str, str]]) -> None:
        _, content = event
        self._found.put((content["token"], content["host"]))

    def _check(self) -> None:
        """The scheduler is there, and has workers."""
        if self._client.status == "running":
            self._silent = 0.0
            none = not self._client.scheduler_info(n_workers=-1).get("workers")
            if none and not self._waits:
                self._say(f"{self.name} has no worker yet; waiting for one")
            self._waits = none
            return
        self._silent = self._silent or time.monotonic()
        if time.monotonic() - self._silent > _LOST_SECONDS or self._is_gone():
            raise self._lost()

    def _is_gone(self) -> bool:
        return self._client.status in ("connecting", "closing", "closed")

    def _lost(self) -> StudyError:
        return StudyError(
            self.name,
            "the scheduler is gone; what is done is kept, and the same command goes on from there, with what workers "
            "have brought to the git remote meanwhile",
        )

    def _warn(self) -> None:
        """Of a scheduler that anybody on any network may give work to."""
        try:
            addresses = self._client.run_on_scheduler(_listens)
        except Exception as error:
            self._say(f"note: the scheduler cannot say where it listens ({type(error).__name__}: {error})")
            return
        for address in addresses:
            protocol, _, place = address.partition("://")
            if protocol != "tls" and place.rpartition(":")[0] in _ANYWHERE:
                self._say(
                    f"warning: the scheduler listens on {address} without TLS: whoever reaches it can run any code on "
                    "its workers; `dask scheduler --host ADDRESS` binds it to one address, `--tls-ca-file` encrypts"
                )


def _silence() -> None:
    """A lost scheduler is one line of ours; each logger of Dask has a level of its own."""
    for name in ["distributed", "tornado", *logging.root.manager.loggerDict]:
        if name.partition(".")[0] in ("distributed", "tornado"):
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)


def _task(work: Work, topic: str, token: str) -> Result:
    """On a worker."""
    from distributed import get_worker

    get_worker().log_event(topic, {"token": token, "host": platform.node()})
    return run_variant(work)


def _tried_once(token: str, dask_scheduler: Any) -> None:
    """On the scheduler: the death of a worker ends this task, so that the one who asked can count and say so."""
    if token in dask_scheduler.tasks:
        dask_scheduler.tasks[token].suspicious = dask_scheduler.allowed_failures


def _listens(dask_scheduler: Any) -> list[str]:
    """On the scheduler: the addresses it listens on."""
    return [str(listener.listen_address) for listener in dask_scheduler.listeners]
