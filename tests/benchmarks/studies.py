"""The same runs twice: one after the other through DVC's queue, and as a study."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.contest import ContenderError
from tests.pipeline.project import Project, copy_project

_PATIENCE_SECONDS = 7200
_STUDY = """
name: bench
question: Which warm-up?
base: {{epochs: {epochs}}}
factors: {{warmup: [{warmups}]}}
seeds: {first}-{last}
baseline: {{warmup: {baseline}}}
metric: train.loss
"""


def seconds_of_queue(warmups: Sequence[int], seeds: Sequence[int], epochs: int) -> float:
    """`dvc exp run --queue` for each run and `dvc queue start -j 2`, until the last one is over."""
    with tempfile.TemporaryDirectory() as folder:
        project = copy_project(Path(folder) / "project")
        start = time.perf_counter()
        sweep = [f"warmup={','.join(map(str, warmups))}", f"seed={','.join(map(str, seeds))}", f"epochs={epochs}"]
        _run(project, "dvc", "exp", "run", "--queue", *(part for one in sweep for part in ("-S", one)))
        _run(project, "dvc", "queue", "start", "-j", "2")
        while True:
            states = project.run("dvc", "queue", "status").stdout
            left = sum(states.count(word) for word in ("Queued", "Running"))
            if not left:
                break
            if time.perf_counter() - start > _PATIENCE_SECONDS:
                raise ContenderError(f"{left} of the queue's runs are not over")
            time.sleep(1)
        seconds = time.perf_counter() - start
        made = states.count("Success")
        _run(project, "dvc", "queue", "stop", "--kill")
    if made != len(warmups) * len(seeds):
        raise ContenderError(f"{made} of the queue's {len(warmups) * len(seeds)} runs succeeded")
    return seconds


def seconds_of_study(warmups: Sequence[int], seeds: Sequence[int], epochs: int) -> float:
    """`noam study run`, its report and MLflow included."""
    with tempfile.TemporaryDirectory() as folder:
        project = copy_project(Path(folder) / "project")
        text = _STUDY.format(
            epochs=epochs,
            warmups=", ".join(map(str, warmups)),
            first=seeds[0],
            last=seeds[-1],
            baseline=warmups[0],
        )
        (project.root / "bench.yaml").write_text(text, encoding="utf-8")
        start = time.perf_counter()
        _run(project, sys.executable, "-m", "stages.cli", "study", "run", "bench.yaml")
        return time.perf_counter() - start


def _run(project: Project, *command: str) -> None:
    from tests.pipeline.project import clean_environment

    done = subprocess.run(
        command,
        cwd=project.root,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=_PATIENCE_SECONDS,
        check=False,
    )
    if done.returncode:
        raise ContenderError(f"{' '.join(command[:4])} ended with {done.returncode}: {done.stderr[-300:]}")
