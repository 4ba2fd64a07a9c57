"""Our training as a contender: iterators that give (updates, tokens) after every piece of work.

They read and write in the current folder.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import deque
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from stages.numerics import set_numerics
from stages.params import TrainParams
from stages.text.reading import normalise
from stages.text.vocabulary import SPECIALS, TextSettings, Vocabulary
from stages.training.batches import Sentences
from stages.training.records import Update
from stages.training.replicas import GroupListener, run_tasks
from stages.training.runs import Listener, Stop, Task, run_task
from stages.training.scoring import score
from stages.training.session import Session
from tests.benchmarks import texts

Splits = dict[str, Sentences]

TOY_TOKENS = 48 / 9  # targets of a sentence
FAITHFUL = {"loss": "notebook"}
ENDLESS = {"epochs": 10**6, "eval_every": 10**6, "eval_tokens": 1000, "checkpoint_every": 0}
# The peer's settings at the size of nanoGPT's example for a CPU, or as close as ours come.
CHARACTERS = {
    "layers": 4,
    "d_model": 128,
    "n_heads": 4,
    "heads": "split",
    "hidden": 512,
    "block": "pre",
    "activation": "gelu",
    "dropout": 0.0,
    "tied_output": True,
    "batches": "packed",
    "context": 64,
    "batch_size": 12,
    "optimizer": "adamw",
    "schedule": "inverse_sqrt",
    "warmup": 100,
    "beta2": 0.99,
    "decay": 0.1,
    "clip": 1.0,
    "shards": 2,
    "threads": 2,
    "numerics": "native",
}
LARGE = {"batches": "packed", "batch_size": 4, "context": 64, "numerics": "native"}


def only_training(sentences: Sentences) -> Splits:
    """Splits with nothing held out."""
    nothing = Sentences(sentences.ids[:0])
    return {"train": sentences, "valid": nothing, "test": nothing}


def toy_text() -> tuple[Splits, int]:
    """The nine sentences as the stages before training leave them, and the size of their vocabulary."""
    lines = [normalise(line, lowercase=True) for line in texts.TOY.read_text(encoding="utf-8").splitlines()]
    vocabulary = Vocabulary.build(
        lines, TextSettings(lowercase=True), order="first_appearance", min_count=1, max_vocab=0
    )
    return only_training(Sentences(vocabulary.flat_ids(lines))), len(vocabulary)


def start(settings: dict[str, Any], splits: Splits, vocab_size: int) -> Session:
    """A run with these settings; nothing may have been computed in this process under other numerics."""
    params = TrainParams.model_validate(settings)
    set_numerics(params.numerics)
    return Session(params, vocab_size, splits)


def updates(session: Session, tokens: float) -> Iterator[tuple[int, float]]:
    """A session by single updates, of so many tokens each."""
    return ((1, tokens) for record in session.records() if isinstance(record, Update))


def toy(**settings: Any) -> Iterator[tuple[int, float]]:
    """The notebook's run, its loss included, without end and without measurements in between."""
    splits, vocab_size = toy_text()
    return updates(start(ENDLESS | FAITHFUL | settings, splits, vocab_size), TOY_TOKENS)


def default_runs() -> Iterator[tuple[int, float]]:
    """Whole runs of the default parameters with their measurements, one after the other; the first is very short."""
    splits, vocab_size = toy_text()
    for short in chain([{"max_updates": 1}], repeat({})):
        count = sum(1 for _ in updates(start(short, splits, vocab_size), 0))
        yield count, count * TOY_TOKENS


def saved_runs(**settings: Any) -> Iterator[tuple[int, float]]:
    """Whole runs of the notebook's kind, one after the other, with their journals and checkpoints."""
    splits, vocab_size = toy_text()
    while True:
        task = task_of(ENDLESS | FAITHFUL | settings, vocab_size)
        checkpoint = run_task(task, splits, Stop(), Listener())
        checkpoint.release()
        shutil.rmtree(checkpoint.folder)
        yield task.settings.max_updates, task.settings.max_updates * TOY_TOKENS


def replicas(count: int, workers: int, **settings: Any) -> Iterator[tuple[int, float]]:
    """As many of these runs with seeds of their own, again and again; at first very short ones."""
    splits, vocab_size = toy_text()
    for short in chain([{"max_updates": 1}], repeat({})):
        tasks = [task_of(ENDLESS | FAITHFUL | settings | {"seed": i} | short, vocab_size) for i in range(count)]
        for kept, _ in run_tasks(tasks, splits, workers, Stop(), GroupListener()):
            shutil.rmtree(kept)
        done = sum(task.settings.max_updates for task in tasks)
        yield done, done * TOY_TOKENS


def task_of(settings: dict[str, Any], vocab_size: int) -> Task:
    """A run to be made, told from others by its settings."""
    params = TrainParams.model_validate(settings)
    set_numerics(params.numerics)
    return Task(params, inputs=params.model_dump(), vocab_size=vocab_size, params=params.model_dump())


def characters(**settings: Any) -> Iterator[tuple[int, float]]:
    """Windows of characters."""
    splits = only_training(Sentences.load(Path(texts.SENTENCES)))
    vocab_size = len(SPECIALS) + texts.count_characters(Path())
    chosen = ENDLESS | CHARACTERS | settings
    return updates(start(chosen, splits, vocab_size), chosen["batch_size"] * chosen["context"])


def together(processes: int, **settings: Any) -> Iterator[tuple[int, float]]:
    """Windows of characters, each batch shared out among several processes of one thread, which live as long as this.

    Between two turns the others wait in a sum for this one.
    """
    from torch.distributed import FileStore

    from stages.training.process_group import ProcessGroup
    from stages.training.processes import MEMORY

    splits = only_training(Sentences.load(Path(texts.SENTENCES)))
    vocab_size = len(SPECIALS) + texts.count_characters(Path())
    chosen = ENDLESS | CHARACTERS | {"shards": 1, "threads": 1, "processes": processes} | settings
    params = TrainParams.model_validate(chosen)
    set_numerics(params.numerics)
    meeting = Path(tempfile.mkdtemp(dir=MEMORY if os.access(MEMORY, os.W_OK) else None))
    rank = next((i for i in range(1, processes) if os.fork() == 0), 0)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    group = ProcessGroup(
        rank, processes, store=FileStore(f"{meeting}/store", processes), folder=Path(meeting), timeout=600
    )
    session = Session(params, vocab_size, splits, group)
    if rank:
        try:
            deque(session.records(), maxlen=0)
        finally:
            os._exit(0)  # the first process has ended
    shutil.rmtree(meeting)
    return updates(session, chosen["batch_size"] * chosen["context"])


def large(**settings: Any) -> Iterator[tuple[int, float]]:
    """Windows out of a file that is never in memory as a whole."""
    splits = only_training(Sentences.load(Path(texts.LARGE)))
    chosen = ENDLESS | LARGE | settings
    session = start(chosen, splits, len(SPECIALS) + texts.LARGE_WORDS)
    return updates(session, chosen["batch_size"] * chosen["context"])


def scored(**settings: Any) -> Iterator[tuple[int, float]]:
    """The same windows, scored as the evaluation does, as many tokens at a time as ten updates train."""
    splits = only_training(Sentences.load(Path(texts.SENTENCES)))
    vocab_size = len(SPECIALS) + texts.count_characters(Path())
    chosen = ENDLESS | CHARACTERS | settings
    session = start(chosen, splits, vocab_size)
    an_update = chosen["batch_size"] * chosen["context"]
    while True:
        threads = chosen["threads"]
        done = score(
            session.model, splits["train"], tokens=10 * an_update, max_length=chosen["context"], threads=threads
        )
        yield 1, done.tokens
