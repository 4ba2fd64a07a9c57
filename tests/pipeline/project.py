"""A copy of this project, as it is in the working tree, in a repository of its own, driven through the real tools."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlflow
import pytest
import yaml

ROOT = Path(__file__).parents[2]
QUICK = {"epochs": 20, "eval_every": 5}


class Project:
    """The copy's folder and what one types in it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, *command: str, check: bool = True, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a command in the copy; its output is shown if it fails though it should not."""
        done = subprocess.run(
            command, cwd=self.root, env=clean_environment(**environment), capture_output=True, text=True, timeout=300
        )
        if check and done.returncode:
            pytest.fail(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done

    def start(self, *command: str, **environment: str) -> subprocess.Popen[str]:
        """Start a command in a process group of its own and go on."""
        pipe = subprocess.PIPE
        env = clean_environment(**environment)
        return subprocess.Popen(
            command, cwd=self.root, env=env, stdout=pipe, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )

    def commit(self, message: str = "state") -> None:
        self.run("git", "add", "-A")
        self.run("git", "commit", "-qm", message)

    def set_params(self, **values: Any) -> None:
        """Change values in params.yaml the way a person does, keeping the comments."""
        path = self.root / "params.yaml"
        lines = path.read_text(encoding="utf-8").splitlines()
        for key, value in values.items():
            (at,) = [i for i, line in enumerate(lines) if line.startswith(f"{key}:")]
            lines[at] = f"{key}: {value}"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")

    @property
    def lock(self) -> bytes:
        return (self.root / "dvc.lock").read_bytes()

    def locked(self, stage: str) -> dict[str, Any]:
        """What dvc.lock says of a stage; nothing where it does not know it."""
        known: dict[str, Any] = yaml.safe_load(self.lock)["stages"] if (self.root / "dvc.lock").exists() else {}
        return known.get(stage, {})

    def outputs(self, stage: str) -> dict[str, str]:
        """MD5 of each output of a stage, as dvc.lock has them."""
        return {out["path"]: out["md5"] for out in self.locked(stage).get("outs", [])}

    def client(self) -> mlflow.MlflowClient:
        return mlflow.MlflowClient(f"sqlite:///{self.root}/mlflow.db")

    def runs(self) -> list[mlflow.entities.Run]:
        """Every run in the store of this folder, oldest first; none without a store."""
        if not (self.root / "mlflow.db").exists():
            return []
        client = self.client()
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        found = client.search_runs(experiments, max_results=1000)
        return sorted(found, key=lambda run: run.info.start_time)


def clean_environment(**more: str) -> dict[str, str]:
    """This process's environment without what DVC and MLflow would take from it; our tools come first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DVC_", "MLFLOW_", "GIT_"))}
    path = f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}"
    return kept | {"PATH": path, "NOAM_LIVE": "off", "MLFLOW_DISABLE_TELEMETRY": "true"} | more


def copy_project(target: Path, **params: Any) -> Project:
    """The working tree of this project (without what git ignores), committed in a new repository."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, target / name)
    project = Project(target)
    project.run("git", "init", "-q", "-b", "main")
    for key, value in {"user.name": "Test", "user.email": "test@example.org", "commit.gpgsign": "false"}.items():
        project.run("git", "config", key, value)
    project.set_params(**params)
    project.commit()
    return project
