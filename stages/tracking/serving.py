"""A model that answers over HTTP, on this machine only: MLflow's server of models with a guard in front.

The guard reads a request whole before MLflow sees it, refuses what is too large or of another form, and turns every
refusal into one sentence, `{"error_code": "BAD_REQUEST", "message": "…"}`. MLflow by itself takes bodies of any size,
ignores parameters that it does not know, and sends the whole request back inside an error.
"""

from __future__ import annotations

import json
import logging
import shutil
import signal
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from stages import files, paths
from stages.errors import TrackingError
from stages.model.places import model_files
from stages.tracking.server import HOST, free_port
from stages.tracking.store import connect, prepare_environment, tracking_errors

if TYPE_CHECKING:
    from mlflow.pyfunc import PyFuncModel
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 2**20  # bytes of a request
_DRAINED = 2**26  # bytes of a larger one that are still read, so that its sender comes to read the answer
_EXAMPLE = (["el perro"], {"top_k": 5})  # MLflow takes its number for the default
_ASK = '{"inputs": ["el perro"], "params": {"top_k": 3}}'


class Parameters(BaseModel):
    """How to answer; what the values may be is for the model to say."""

    model_config = ConfigDict(extra="forbid", strict=True)
    top_k: int = Field(default=5, ge=-(2**63), lt=2**63)


class Question(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid", strict=True)
    inputs: list[str]
    params: Parameters | None = None


def serve_model(port: int, *, run: str | None = None, folder: str | None = None) -> int:
    """Serve next words until Ctrl-C or SIGTERM, which end it with 0. A busy port is said, and the next free one taken.

    Args:
        port: on the loopback device.
        run: the model of this run in MLflow, or
        folder: that of a folder, ours or one that MLflow saved; neither: data/model.

    Raises:
        LabError: there is no such model, or no free port.
    """
    prepare_environment(timeout=5)
    with tempfile.TemporaryDirectory(prefix="noam-") as temporary:
        place = Path(temporary)
        weights, vocab = find_model(fetch_model(run, place) if run is not None else Path(folder or paths.MODEL))
        print("starting MLflow, which takes some seconds …", flush=True)
        model = load(weights, vocab, place)
    import uvicorn
    from mlflow.pyfunc import scoring_server
    from starlette.middleware.trustedhost import TrustedHostMiddleware

    # Only those names of this machine: no page of another site asks through a browser.
    app = TrustedHostMiddleware(Guard(scoring_server.init(model)), allowed_hosts=[HOST, "localhost"])
    chosen = free_port(port)
    if chosen != port:
        print(f"port {port} is busy; taking {chosen} instead (`noam serve --port N` chooses)", flush=True)
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        with socket.create_server((HOST, chosen)) as listening:
            print(f"serving on http://{HOST}:{chosen}; Ctrl-C stops it. To ask:")
            print(
                f"  curl http://{HOST}:{chosen}/invocations -H 'Content-Type: application/json' -d '{_ASK}'", flush=True
            )
            uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run(sockets=[listening])
    except KeyboardInterrupt:
        pass
    finally:
        signal.signal(signal.SIGTERM, previous)
    return 0


def find_model(folder: Path) -> tuple[Path, Path]:
    """The folder of the weights, and the vocabulary, both whole.

    Raises:
        ArtifactError: something is missing or damaged, or the vocabulary is another model's.
    """
    from stages.model.predict import Predictor  # imports torch

    weights, vocab = model_files(folder)
    Predictor.load(weights, vocab)  # which says what is wrong
    return weights, vocab


def load(weights: Path, vocab: Path, temporary: Path) -> PyFuncModel:
    """The model that `find_model` found, as MLflow's; nothing of it is read later."""
    import mlflow

    prepare_environment(timeout=5)  # its import sets the levels of its loggers
    shutil.copytree(weights, temporary / "weights", ignore=shutil.ignore_patterns("replicas"))
    shutil.copy(vocab, temporary / "weights/vocab.json")
    mlflow.pyfunc.save_model(
        path=str(temporary / "model"),
        python_model=str(Path(__file__).with_name("pyfunc_model.py")),
        artifacts={"model": str(temporary / "weights")},
        pip_requirements=[],
        input_example=_EXAMPLE,
    )
    model: PyFuncModel = mlflow.pyfunc.load_model(str(temporary / "model"))
    return model


def fetch_model(run: str, temporary: Path) -> Path:
    """The folder of the model that a run has in MLflow, brought to this machine.

    Raises:
        TrackingError: MLflow cannot be reached, or has no such model.
    """
    import mlflow

    store = connect()
    with tracking_errors(store.uri):
        condition = f"source_run_id = '{run}'"
        known = store.client.search_logged_models([store.experiment_id], condition) if run.isalnum() else []
        found = [model for model in known if model.status == "READY"]
        if not found:
            raise TrackingError(f"--run {run}: expected the id of a run with a model; `noam ui` lists them")
        mlflow.artifacts.download_artifacts(
            artifact_uri=f"models:/{found[0].model_id}", dst_path=str(temporary / "run"), tracking_uri=store.uri
        )
    return temporary / "run"


class Guard:
    """Stands before MLflow's application: whole requests of the right form in, answers or one sentence out."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (scope["method"], scope["path"]) != ("POST", "/invocations"):
            await self._app(scope, receive, send)
            return
        body = await _body(receive)
        try:
            question = _question(dict(scope["headers"]).get(b"content-type", b""), body)
        except _RefusedError as refused:
            await _refuse(send, refused.status, str(refused))
            return
        answer = await self._ask(scope, receive, question)
        if answer and answer[0]["status"] < 400:
            for message in answer:
                await send(message)
        else:
            status = answer[0]["status"] if answer else 500
            await _refuse(send, status, _sentence(b"".join(message.get("body", b"") for message in answer)))

    async def _ask(self, scope: Scope, receive: Receive, question: Question) -> list[Message]:
        """What MLflow answers; nothing where it fails, which is then in the log."""
        body = question.model_dump_json(exclude_none=True).encode(
            "utf-8"
        )  # as we understood it, so that MLflow cannot read it otherwise
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode("ascii"))]
        waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        answer: list[Message] = []

        async def again() -> Message:
            return waiting.pop() if waiting else await receive()

        async def keep(message: Message) -> None:
            answer.append(message)

        try:
            await self._app({**scope, "headers": headers}, again, keep)
        except Exception:
            logging.getLogger("uvicorn.error").exception("the model failed")
            return []
        return answer


class _RefusedError(Exception):
    """A request that is not passed on."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


async def _body(receive: Receive) -> bytes | None:
    """The body of a request; None of one that is too large, or whose sender has gone."""
    parts, size, more = [], 0, True
    while more and size <= _DRAINED:
        message = await receive()
        if message["type"] != "http.request":
            return None
        part, more = message.get("body", b""), message.get("more_body", False)
        size += len(part)
        if size <= MAX_BODY:
            parts.append(part)
    return b"".join(parts) if size <= MAX_BODY else None


def _question(content_type: bytes, body: bytes | None) -> Question:
    """The question that a body holds.

    Raises:
        _RefusedError: it holds none.
    """
    if body is None:
        raise _RefusedError(413, f"the body of the request is too large: expected at most {MAX_BODY} bytes")
    kind = content_type.decode("latin-1")
    if kind.partition(";")[0].strip().lower() != "application/json":
        raise _RefusedError(415, f"Content-Type: {kind[:60]!r}: expected application/json")
    try:
        return Question.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(str(part) for part in first["loc"]) or "body"
        given = "" if first["type"] in ("json_invalid", "missing") else f" = {first['input']!r}"
        shown = given if len(given) <= 60 else f"{given[:59]}…"
        raise _RefusedError(400, f"{place}{shown}: {first['msg'][:1].lower()}{first['msg'][1:]}") from None


async def _refuse(send: Send, status: int, sentence: str) -> None:
    code = "INTERNAL_ERROR" if status >= 500 else "BAD_REQUEST"
    body = files.dump_json({"error_code": code, "message": sentence}, indent=None).encode("utf-8", "replace")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode("ascii"))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _sentence(body: bytes) -> str:
    """The reason in an error of MLflow, which has the whole request in front of it."""
    try:
        message = str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return "the server could not answer; its log says why"
    return message.rpartition("\nError: ")[2].partition("\n")[0]


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
