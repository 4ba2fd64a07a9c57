"""The real server on a free port: it answers, it refuses with one sentence, and it lives on."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch

from stages import files
from stages.model.language_model import LanguageModel
from stages.model.predict import Predictor
from stages.model.storage import save_model
from stages.text.vocabulary import TextSettings, Vocabulary
from stages.tracking import outbox
from stages.tracking.fingerprint import fingerprint_of_folder
from stages.tracking.store import Store
from stages.tracking.sync import sync_one
from tests.conftest import ROOT
from tests.tracking.lab import only_run, train_execution

WORDS = ["el", "perro", "come", "nada"]  # after the last of them this model's numbers are not finite
WINDOW = 8
SERVE = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "  # ignored where tests run in background
    "from stages.cli import main; main()"
)
LOAD = """
import json, sys, tempfile
from pathlib import Path
from stages.errors import LabError
from stages.tracking import serving
from stages.tracking.store import prepare_environment
prepare_environment(5)
with tempfile.TemporaryDirectory() as folder:
    try:
        found = serving.find_model(serving.fetch_model(sys.argv[1], Path(folder)))
        model = serving.load(*found, Path(folder))
    except LabError as error:
        sys.exit(f"error: {error}")
print(json.dumps([answer.model_dump() for answer in model.predict(["el perro"], params={"top_k": 2})]))
"""


@pytest.fixture(scope="module")
def workspace_of_a_model(tmp_path_factory: pytest.TempPathFactory, new_model: Callable[..., LanguageModel]) -> Path:
    """A folder with a model and its vocabulary where the stages put them, under a path with a space."""
    folder = tmp_path_factory.mktemp("serving") / "a model"
    vocabulary = Vocabulary(WORDS, [4, 3, 2, 1], TextSettings(lowercase=True))
    files.write_json(folder / "data/vocab/vocab.json", vocabulary.to_dict())
    model = new_model(vocab_size=8)
    with torch.no_grad():
        model.embedding.weight[7].fill_(float("nan"))
    about = {"vocab_md5": files.md5_file(folder / "data/vocab/vocab.json"), "training": {"max_length": WINDOW}}
    (folder / "data/model").mkdir()
    save_model(model, folder / "data/model", about)
    return folder


def start(folder: Path, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    """`noam serve`, and the address that it says once it can be asked."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    server = subprocess.Popen(
        [sys.executable, "-c", SERVE, "serve", *arguments],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"serving on (http://127\.0\.0\.1:\d+);", line):
            server.stdout.readline()
            return server, found[1]
    raise AssertionError(f"ended with {server.wait()}")


@pytest.fixture(scope="module")
def server(workspace_of_a_model: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """One for all tests; at the end it goes on Ctrl-C, with 0."""
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        process, address = start(workspace_of_a_model, "--port", str(port))
        assert not address.endswith(f":{port}")  # that one was taken
    yield process, address
    with process:
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0


@pytest.fixture
def ask(server: tuple[subprocess.Popen[str], str]) -> Callable[..., tuple[int, Any]]:
    """Post to the server: status and content of its answer."""
    _, address = server

    def post(body: Any, kind: str = "application/json", **headers: str) -> tuple[int, Any]:
        raw = body if isinstance(body, bytes) else json.dumps(body).encode("utf-8")
        request = urllib.request.Request(f"{address}/invocations", raw, {"Content-Type": kind, **headers})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, json.loads(answer.read(), parse_constant=pytest.fail)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode("utf-8")
                return error.code, json.loads(text)["message"] if text.startswith("{") else text

    return post


def test_it_predicts_as_we_do(workspace_of_a_model: Path, ask: Callable[..., tuple[int, Any]]) -> None:
    data = workspace_of_a_model / "data"
    predictor = Predictor.load(data / "model", data / "vocab/vocab.json")
    status, answer = ask({"inputs": ["El perro", "un perro", ""], "params": {"top_k": 3}})
    assert status == 200
    for text, found in zip(["El perro", "un perro", ""], answer["predictions"], strict=True):
        expected = predictor.next_words(text, 3)
        assert (found["prompt"], found["unknown"]) == (text, expected.unknown)
        assert [(word["word"], pytest.approx(word["probability"])) for word in found["next"]] == expected.next
    assert [len(found["next"]) for found in ask({"inputs": ["el"]})[1]["predictions"]] == [5]
    assert ask({"inputs": ["el"], "params": None}) == ask({"inputs": ["el"]})
    assert len(ask({"inputs": ["el"], "params": {"top_k": 1000}})[1]["predictions"][0]["next"]) == 8


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"inputs": []}, "0 texts: expected 1 to 64"),
        ({"inputs": [5]}, "inputs.0 = 5: input should be a valid string"),
        ({"inputs": [None]}, "inputs.0 = None: input should be a valid string"),
        ({"inputs": "el"}, "inputs = 'el': input should be a valid array"),
        ({"inputs": {"text": "el"}}, "inputs = {'text': 'el'}: input should be a valid array"),
        ({"inputs": ["el"] * 65}, "65 texts: expected 1 to 64"),
        ({"instances": ["el"]}, "inputs: field required"),
        ({"inputs": ["el"], "dataframe_split": {}}, "dataframe_split = {}: extra inputs are not permitted"),
        ({"inputs": ["el"], "params": {"top_k": 0}}, "top_k = 0: expected a whole number from 1 to 1000"),
        ({"inputs": ["el"], "params": {"top_k": 1001}}, "top_k = 1001: expected a whole number from 1 to 1000"),
        ({"inputs": ["el"], "params": {"top_k": -(2**63)}}, "top_k = -9223372036854775808: expected a whole"),
        ({"inputs": ["el"], "params": {"top_k": "3"}}, "params.top_k = '3': input should be a valid integer"),
        ({"inputs": ["el"], "params": {"top_k": 2.5}}, "params.top_k = 2.5: input should be a valid integer"),
        ({"inputs": ["el"], "params": {"topk": 3}}, "params.topk = 3: extra inputs are not permitted"),
        ({"inputs": ["el"], "params": [3]}, "params = [3]: input should be"),
        ({"inputs": ["el " * WINDOW]}, "text 1 has 9 tokens, [bos] included: expected at most 8"),
        ({"inputs": ["el", "el " * 90_000]}, "text 2 has 90001 tokens, [bos] included: expected at most 8"),
        ({"inputs": ["el nada"]}, "the model's probabilities are not finite: train it with a lower rate"),
        ([], "body = []: input should be an object"),
        (b"", "body: invalid JSON"),
        (b"{", "body: invalid JSON"),
        (b"\xff\xfe", "body: invalid JSON"),
        (b'{"inputs": ["\\ud800"]}', "body: invalid JSON"),
        (b"[" * 100_000, "body: invalid JSON"),
        (b'{"inputs": ["el"], "params": {"top_k": ' + b"9" * 5000 + b"}}", "body: invalid JSON"),
        (b'{"inputs": ["el"], "params": {"top_k": ' + b"9" * 500 + b"}}", "params.top_k = 9999"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_one_sentence(
    ask: Callable[..., tuple[int, Any]], body: Any, message: str
) -> None:
    status, found = ask(body)
    assert (status, found[: len(message)]) == (400, message)
    assert "\n" not in found
    assert len(found) < 300
    assert ask({"inputs": ["el"]})[0] == 200


@pytest.mark.parametrize("size", [2**20 + 1, 40_000_000])
def test_a_huge_body_is_refused_without_being_kept(
    server: tuple[subprocess.Popen[str], str], ask: Callable[..., tuple[int, Any]], size: int
) -> None:
    process = psutil.Process(server[0].pid)
    before = process.memory_info().rss
    assert ask(b" " * size) == (413, "the body of the request is too large: expected at most 1048576 bytes")
    assert process.memory_info().rss - before < 20_000_000
    assert ask({"inputs": ["el"]})[0] == 200


@pytest.mark.parametrize("kind", ["text/csv", "text/plain", "application/x-www-form-urlencoded"])
def test_only_json_is_taken(ask: Callable[..., tuple[int, Any]], kind: str) -> None:
    assert ask({"inputs": ["el"]}, kind) == (415, f"Content-Type: {kind!r}: expected application/json")
    assert ask({"inputs": ["el"]}, "application/json; charset=utf-8")[0] == 200


def test_it_is_for_this_machine_only(
    server: tuple[subprocess.Popen[str], str], ask: Callable[..., tuple[int, Any]]
) -> None:
    listening = [
        one.laddr.ip for one in psutil.Process(server[0].pid).net_connections("inet") if one.status == "LISTEN"
    ]
    assert listening == ["127.0.0.1"]
    assert ask({"inputs": ["el"]}, Host="elsewhere.example")[0] == 400
    assert ask({"inputs": ["el"]}, Host="localhost")[0] == 200


def test_a_run_of_mlflow_is_served(store: Store, workspace: Path) -> None:
    execution = train_execution()
    outbox.set_fingerprint(execution, str(fingerprint_of_folder()))
    execution.close("finished")
    sync_one(store, execution, workspace)
    command = [sys.executable, "-W", "ignore", "-c", LOAD]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = only_run(store).info.run_id
    done = subprocess.run([*command, run], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = Predictor.load(Path("data/model"), Path("data/vocab/vocab.json")).next_words("el perro", 2)
    found = json.loads(done.stdout.splitlines()[-1])[0]["next"]
    assert [(word["word"], pytest.approx(word["probability"])) for word in found] == expected.next
    for unknown in ("0" * 32, "it's"):
        done = subprocess.run([*command, unknown], env=environment, capture_output=True, text=True, check=False)
        assert done.stderr.endswith(
            f"error: --run {unknown}: expected the id of a run with a model; `noam ui` lists them\n"
        )


def test_a_folder_without_a_model_is_one_line(tmp_path: Path) -> None:
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", SERVE, "serve", "--model", "nowhere"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: nowhere/config.json: not there")
    assert time.monotonic() - begun < 30
