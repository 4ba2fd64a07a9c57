"""How the tests run studies, and what they look at afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stages.training.kept import about, step_of
from tests.pipeline.project import Project

# 1080 updates, which take a second; figures of next to nothing.
BASE: dict[str, Any] = {
    "epochs": 120,
    "d_model": 16,
    "hidden": 16,
    "n_heads": 2,
    "eval_every": 40,
    "checkpoint_every": 50,
    "snapshots": 0,
    "prompts": [""],
    "resamples": 100,
}

# `noam study run` without the report.
RUN = """
import sys
import stages.numerics
from stages.commands.study import plan_of
from stages.studies import whole

plan = plan_of(sys.argv[1], smoke=False)
account = whole.run(plan, workers=int(sys.argv[2]), say=lambda line: print(line, flush=True))
print(len(account.ran), "ran", len(account.known), "known", len(account.failed), "failed")
"""


def noam(project: Project, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """`noam …` with the code of the copy."""
    return project.run(sys.executable, "-m", "stages.cli", *arguments, check=check)


def overrides(**values: object) -> list[str]:
    """What `dvc exp run` is told of these parameters."""
    return [part for key, value in values.items() for part in ("-S", f"{key}={json.dumps(value)}")]


def run_study(project: Project, file: str = "small.yaml", workers: int = 0) -> str:
    """Run it without a report; what it says."""
    return project.run(sys.executable, "-c", RUN, file, str(workers)).stdout


def start_study(project: Project, file: str = "small.yaml", workers: int = 1) -> subprocess.Popen[str]:
    return project.start(sys.executable, "-m", "stages.cli", "study", "run", file, "--workers", str(workers))


def experiments(project: Project) -> dict[str, str]:
    """The commit of each experiment that DVC lists, by its name."""
    lines = project.run("git", "for-each-ref", "--format=%(refname) %(objectname)", "refs/exps").stdout.splitlines()
    pairs = [line.split() for line in lines if not line.startswith("refs/exps/exec/")]
    return {ref.rsplit("/", 1)[1]: commit for ref, commit in pairs}


def trees(project: Project) -> dict[str, str]:
    """What each experiment contains, by its name: equal digests are equal bytes of all files that git tracks."""
    return {
        name: project.run("git", "rev-parse", f"{commit}^{{tree}}").stdout.strip()
        for name, commit in experiments(project).items()
    }


def executions(project: Project) -> list[dict[str, Any]]:
    """The records of all executions, the oldest first."""
    found = sorted((project.root / ".runstate/executions").glob("*/execution.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in found]


def journal(project: Project, identity: str) -> list[dict[str, Any]]:
    path = project.root / ".runstate/executions" / identity / "journal.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return [json.loads(line) for line in lines]


def events(project: Project, identity: str) -> list[str]:
    return [entry["event"] for entry in journal(project, identity) if "event" in entry]


def progress(project: Project) -> dict[tuple[int, int], int]:
    """Updates in the checkpoint of each run, by its warm-up and seed."""
    return {run: step_of(folder) for run, folder in checkpoints(project).items()}


def checkpoints(project: Project) -> dict[tuple[int, int], Path]:
    """The folder of the checkpoint of each run, by its warm-up and seed."""
    found = {}
    for folder in (project.root / ".runstate/checkpoints").glob("*/"):
        inputs = about(folder).get("inputs", {})
        if inputs and "replicas" not in inputs:
            found[inputs["params.yaml (warmup)"], inputs["params.yaml (seed)"]] = folder
    return found


def wait_for(condition: Callable[[], Any], process: subprocess.Popen[str], seconds: float = 90) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, f"it has ended: {process.communicate()[0]}"
        assert time.monotonic() < until, "never came true"
        time.sleep(0.01)
