"""A workspace with the results of a small run, laid out as the stages lay them out, and what tests ask about it."""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import torch
import yaml
from mlflow.entities import Run
from PIL import Image

from stages import files, paths
from stages.evaluate import summary
from stages.execution import Execution, Journal
from stages.model.language_model import LanguageModel, LanguageModelConfig, initialise
from stages.model.storage import save_model
from stages.params import Params, load_params
from stages.text.vocabulary import Vocabulary
from stages.tracking.store import Store
from stages.training.history import rows_of
from stages.training.records import Divergence, Update, Validation
from stages.training.series import JournalSeries

REPOSITORY = Path(__file__).resolve().parents[2]
UPDATES = 54
STAGES = {
    "prepare": (["data/raw/notebook.txt"], ["data/prepared", "reports/corpus.json"]),
    "vocab": (["data/prepared"], ["data/vocab"]),
    "train": (["data/vocab"], ["data/model", "reports/history.json", "reports/validation.json"]),
    "evaluate": (["data/model"], ["data/evaluation", "reports/metrics.json", "reports/replicas.json"]),
    "plots": (["data/evaluation"], ["reports/figures", "reports/index.html"]),
}
WORDS = [
    "el",
    "perro",
    "come",
    "un",
    "hueso",
    "muchacho",
    "jugaba",
    "saltaba",
    "la",
    "cuerda",
    "croquetas",
    "gato",
    "con",
]


ENVIRONMENT = {"torch": "2.13.0", "numerics": "portable", "processor": "ñ 3000"}


def train_execution() -> Execution:
    """What `train` leaves behind in the current folder: an execution, and one a replica where there are several."""
    params = load_params(Params)
    made = Execution.create("trained", params.model_dump(), environment=ENVIRONMENT)
    made.make_current()
    if params.replicas == 1:
        journal_results(made)
    else:
        for seed in range(params.seed, params.seed + params.replicas):
            replica = begin_replica(made, seed)
            journal_results(replica)
            replica.append_event("finished")
    made.append_event("trained")
    return made


def begin_replica(group: Execution, seed: int) -> Execution:
    """A replica of an execution, which has just begun."""
    params = load_params(Params).model_dump() | {"seed": seed}
    replica = Execution.create("trained", params, parent=group.id, environment=ENVIRONMENT)
    group.add_replica(replica)
    return replica


def journal_results(execution: Execution, *, until: int | None = None) -> None:
    """Journal the history of an execution's seed that lies in the current folder, as `train` does."""
    seed = execution.record.seed
    own = paths.MODEL / "replicas" / str(seed)
    folder = own if own.is_dir() else paths.HISTORY.parent
    history = [Update(**record) for record in files.read_json(folder / "history.json")]
    validations = [Validation(**record) for record in files.read_json(folder / "validation.json")]
    listed = files.read_json(paths.REPLICAS)
    measured = next(one for one in listed if one["seed"] == seed or len(listed) == 1)
    with Journal(execution) as journal:
        series = JournalSeries(journal, UPDATES)
        for record in sorted([*history[:until], *validations], key=lambda one: one.step):
            if record.step <= (until or UPDATES):
                series.add(record)
    if "diverged_at" in measured and until is None:
        execution.append_event("diverged", str(Divergence(measured["diverged_at"], 1, 0.5, "loss nan")))


def records_of(seed: int, updates: int) -> tuple[list[Update], list[Validation]]:
    """What a run of that seed reports, up to an update."""
    draw = random.Random(seed)
    history = [Update(t, (t + 8) // 9, 1e-6 * t, 2.7 - t / 60 + draw.random() / 9, 1.0) for t in range(1, updates + 1)]
    return history, [
        Validation(t, t // 9, "train", 2.7 - t / 60 + seed / 10, 9.0, t / 99) for t in range(0, updates + 1, 18)
    ]


def write_results(folder: Path, *, seed: int, diverged: dict[int, int] | None = None) -> None:
    """Data, reports and dvc.lock of a run or of several replicas, in the formats of the stages.

    Args:
        folder: with params.yaml.
        seed: of the run, or of the first replica.
        diverged: the update at which a seed's run diverged.
    """
    draw = random.Random(seed)
    params = load_params(Params, folder / "params.yaml")
    for split in paths.SPLITS:
        files.write_text(folder / paths.PREPARED / f"{split}.txt", "el perro come\n" if split == "train" else "")
    files.write_json(folder / paths.CORPUS_REPORT, {"file": "notebook.txt", "lines_read": 9})
    specials = ["[pad]", "[bos]", "[eos]", "[unk]"]
    vocab = folder / paths.VOCAB / "vocab.json"
    files.write_json(vocab, {"specials": specials, "words": WORDS, "counts": [1] * len(WORDS), "lowercase": True})
    _write_training(folder, params, seed, diverged or {})
    answers, arrays = [], {}
    for i, prompt in enumerate(params.prompts):
        shares = sorted((draw.random() for _ in WORDS), reverse=True)
        following = [{"word": w, "probability": p / sum(shares)} for w, p in zip(WORDS, shares, strict=True)]
        answers.append({"prompt": prompt, "tokens": ["[bos]", *prompt.split()], "unknown": [], "next": following})
        size = len(answers[-1]["tokens"])
        weights = np.tril(np.ones((params.layers, params.n_heads, size, size), dtype=np.float32))
        arrays[f"prompt-{i}"] = weights / weights.sum(-1, keepdims=True)
        for head in range(params.n_heads):
            picture = folder / paths.FIGURES / f"attention-p{i}-L0H{head}.png"
            picture.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (900, 700), (40 * head, 90 * i, 160)).save(picture)
    files.write_json(folder / paths.EVALUATION / "next_words.json", answers)
    safetensors.numpy.save_file(arrays, folder / paths.EVALUATION / "attention.safetensors")
    Image.new("RGB", (900, 600), (200, 220, 240)).save(folder / paths.FIGURES / "loss.png")
    files.write_text(folder / paths.FIGURES / "loss.svg", "<svg xmlns='http://www.w3.org/2000/svg'/>\n")
    files.write_text(folder / paths.REPORT, "<!doctype html><title>Noam Lab</title><h1>Report</h1>\n")
    write_pipeline(folder, params.model_dump())


def set_params(folder: Path, **values: Any) -> None:
    """Change values in the params.yaml of a workspace."""
    content = yaml.safe_load((folder / paths.PARAMS).read_text(encoding="utf-8")) | values
    files.write_text(folder / paths.PARAMS, yaml.safe_dump(content, allow_unicode=True, sort_keys=False))


def _write_training(folder: Path, params: Params, first: int, diverged: dict[int, int]) -> None:
    """Model, history and metrics of each replica and of all."""
    vocab = folder / paths.VOCAB / "vocab.json"
    shape = params.model_dump(include=LanguageModelConfig.model_fields.keys() - {"vocab_size"})
    shutil.rmtree(folder / paths.MODEL, ignore_errors=True)
    seeds = range(first, first + params.replicas)
    runs = {seed: records_of(seed, diverged.get(seed, UPDATES + 1) - 1) for seed in seeds}
    measured = []
    for seed, (history, validations) in runs.items():
        own = folder / paths.MODEL / "replicas" / str(seed)
        if params.replicas > 1:
            files.write_records(own / "history.json", rows_of([history]))
            files.write_records(own / "validation.json", rows_of([validations]))
        model = LanguageModel(LanguageModelConfig(vocab_size=len(Vocabulary.load(vocab)), **shape))
        initialise(model, torch.Generator().manual_seed(seed))
        about = {"vocab_md5": files.md5_file(vocab), "updates": len(history), "training": {"seed": seed}}
        target = folder / paths.MODEL if seed == first else own
        target.mkdir(parents=True, exist_ok=True)
        save_model(model, target, about)
        loss = None if seed in diverged else 1.8 + seed / 10
        train = {"loss": loss, "perplexity": 6.05, "accuracy": 0.4, "tokens": 48, "sentences": 9, "unknown_share": 0.0}
        train |= {"interval": None, "floor": 0.412, "excess": None if loss is None else loss - 0.412}
        last = {"last_finite": asdict(validations[-1]), "diverged_at": diverged[seed]} if seed in diverged else {}
        measured.append({"seed": seed, **last, "train": train})
    files.write_records(folder / paths.HISTORY, rows_of([history for history, _ in runs.values()]))
    files.write_records(folder / paths.VALIDATION, rows_of([validations for _, validations in runs.values()]))
    files.write_json(folder / paths.REPLICAS, measured)
    files.write_json(folder / paths.METRICS, {"measured_on": "training text", **summary(measured)})


def write_pipeline(folder: Path, params: dict[str, Any]) -> None:
    """dvc.yaml with the stages and what DVC would write into dvc.lock after them."""
    stages = {
        name: {"cmd": f"python -m stages.{name}", "deps": deps, "outs": outs} for name, (deps, outs) in STAGES.items()
    }
    stages["track"] = {"cmd": "python -m stages.track", "deps": ["reports/metrics.json"], "outs": [str(paths.TRACKED)]}
    files.write_text(folder / paths.PIPELINE, yaml.safe_dump({"stages": stages}, sort_keys=False))
    lock = {
        name: {
            "cmd": f"python -m stages.{name}",
            "deps": [{"path": path, "hash": "md5", "md5": digest(folder / path)} for path in deps],
            "params": {"params.yaml": params} if name == "train" else {},
            "outs": [{"path": path, "hash": "md5", "md5": digest(folder / path)} for path in outs],
        }
        for name, (deps, outs) in STAGES.items()
    }
    files.write_text(folder / paths.LOCK, yaml.safe_dump({"schema": "2.0", "stages": lock}, sort_keys=False))


def digest(path: Path) -> str:
    """Like DVC's MD5: of a file, or of a list of a folder's files."""
    if path.is_file():
        return files.md5_file(path)
    listing = [{"md5": files.md5_file(one), "relpath": one.name} for one in sorted(path.rglob("*")) if one.is_file()]
    return hashlib.md5(json.dumps(listing).encode(), usedforsecurity=False).hexdigest() + ".dir"


def run_stage(
    module: str, *arguments: str, timeout: float = 120, **environment: str
) -> subprocess.CompletedProcess[str]:
    """`python -m module` in the current folder, with its output as text."""
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, **environment},
    )


def wait_until(condition: Callable[[], Any], seconds: float, pause: float = 0.2) -> None:
    """Poll until `condition()` is true."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            raise AssertionError(f"not true after {seconds} s")
        time.sleep(pause)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def runs_by_seed(store: Store, role: str) -> dict[int, Run]:
    """The runs with that role, whole, by their seeds."""
    found = store.tagged("noam.role", role)
    by_seed = {int(run.data.tags["seed"]): store.client.get_run(run.info.run_id) for run in found}
    assert len(by_seed) == len(found), [run.info.run_name for run in found]
    return by_seed


def only_run(store: Store) -> Run:
    """The single run of a store."""
    found = list(store.runs())
    assert len(found) == 1, [run.info.run_name for run in found]
    return store.client.get_run(found[0].info.run_id)


def history(store: Store, run: Run, key: str) -> list[tuple[int, float, int]]:
    """All points of a metric: step, value, time."""
    return [(m.step, m.value, m.timestamp) for m in store.client.get_metric_history(run.info.run_id, key)]


def journalled(execution: Execution, key: str) -> list[tuple[int, float, int]]:
    """All points of a metric in a journal."""
    return [(e["s"], e["m"][key], e["t"]) for e in execution.entries() if key in e.get("m", {})]


def is_open(port: int) -> bool:
    """Somebody listens on this port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
