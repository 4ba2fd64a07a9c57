"""One contender in a process of its own: `python -m tests.benchmarks.contender KIND`.

It warms up and says so. Then each line of its standard input is a number of pieces of work to do, updates for most, and
each line of its standard output says as JSON what they took.
"""

from __future__ import annotations

import stages.numerics  # noqa: F401  # isort: skip (before NumPy; settles nothing for torch)
import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from tests.benchmarks import matmuls, nanogpt_peer, notebook_peer, texts

Work = Iterator[tuple[int, float]]  # (updates, tokens) of each piece

_TOY = matmuls.Sizes(layers=1, d_model=128, n_heads=5, head_width=128, hidden=128, vocab_size=15)
_TOY_LENGTHS = (6, 4, 6, 5, 4, 5, 4, 7, 7)


def notebook() -> Work:
    torch.set_num_threads(1)
    return ((1, targets) for targets, _ in notebook_peer.train(texts.TOY))


def toy_products() -> Work:
    torch.set_num_threads(1)
    return ((1, tokens) for tokens in matmuls.run(_TOY, 1, _TOY_LENGTHS))


def nanogpt(compiled: bool = False) -> Work:
    torch.set_num_threads(2)
    settings = nanogpt_peer.Settings()
    vocab_size = texts.count_characters(Path())
    updates = nanogpt_peer.train(Path(texts.STREAM), vocab_size, settings, compiled=compiled)
    return ((1, targets) for targets, _ in updates)


def character_products() -> Work:
    torch.set_num_threads(2)
    of = nanogpt_peer.Settings()
    sizes = matmuls.Sizes(
        of.layers, of.width, of.heads, of.width // of.heads, 4 * of.width, texts.count_characters(Path())
    )
    return ((1, tokens) for tokens in matmuls.run(sizes, of.batch, [of.context]))


def ours(name: str) -> Callable[..., Work]:
    def start(**arguments: Any) -> Work:
        from tests.benchmarks import ours  # the peers' processes never load our training

        work: Work = getattr(ours, name)(**arguments)
        return work

    return start


KINDS: dict[str, Callable[..., Work]] = {
    "notebook": notebook,
    "toy products": toy_products,
    "nanogpt": nanogpt,
    "character products": character_products,
    "our toy": ours("toy"),
    "our default runs": ours("default_runs"),
    "our saved runs": ours("saved_runs"),
    "our replicas": ours("replicas"),
    "our characters": ours("characters"),
    "ours together": ours("together"),
    "our large text": ours("large"),
    "our scores": ours("scored"),
}


def cpu_seconds() -> float:
    """Of this process, with all its threads, and of the children that it has waited for."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def peak_bytes() -> int:
    """The most memory that was resident at once, as the operating system has it."""
    status = Path("/proc/self/status")
    if status.is_file():  # the other source counts what the parent had before it started this program, too
        (line,) = (line for line in status.read_text(encoding="ascii").splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--arguments", type=json.loads, default={}, help="a JSON object for the kind")
    parser.add_argument("--folder", type=Path, help="where it reads and writes")
    parser.add_argument("--warmup", type=int, default=0, help="pieces of work before the first turn")
    options = parser.parse_args()
    replies, sys.stdout = sys.stdout, sys.stderr
    if options.folder:
        os.chdir(options.folder)

    def reply(**content: float) -> None:
        print(json.dumps(content), file=replies, flush=True)

    start = time.perf_counter()
    work = KINDS[options.kind](**options.arguments)
    list(islice(work, min(1, options.warmup)))
    first = time.perf_counter() - start
    list(islice(work, max(0, options.warmup - 1)))
    reply(first=first)
    for line in sys.stdin:
        wall, cpu = time.perf_counter(), cpu_seconds()
        done = list(islice(work, int(line)))
        wall, cpu = time.perf_counter() - wall, cpu_seconds() - cpu
        updates, tokens = (sum(column) for column in zip(*done, strict=True))
        reply(wall=wall, cpu=cpu, updates=updates, tokens=tokens, peak_bytes=peak_bytes())


if __name__ == "__main__":
    main()
