"""What the tests of studies on other machines share: a project with remotes, and a scheduler of Dask with workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests.pipeline.project import ROOT, Project, clean_environment, copy_project
from tests.studies import small
from tests.studies.running import BASE

DONE = "refs/noam/done/"


def shared_project(folder: Path, **study: Any) -> Project:
    """The project with a small study, a git remote of which it is a clone, and a default remote of DVC."""
    project = copy_project(folder / "my tree")
    content = {"factors": {"warmup": [10, 40]}, "seeds": "10-11", "baseline": {"warmup": 10}} | study
    small.write(project.root, **({"base": BASE} | content))
    project.run("dvc", "remote", "add", "-q", "-d", "store", str(folder / "store"))
    project.commit("a study")
    project.run("git", "init", "-q", "--bare", "-b", "main", str(folder / "hub.git"))
    project.run("git", "remote", "add", "origin", str(folder / "hub.git"))
    project.run("git", "push", "-q", "-u", "origin", "main")
    return project


def another_clone(project: Project, folder: Path) -> Project:
    """What a colleague has: a clone of the git remote, with nothing run."""
    url = project.run("git", "remote", "get-url", "origin").stdout.strip()
    project.run("git", "clone", "-q", url, str(folder))
    return Project(folder)


def on_hub(project: Project) -> dict[str, str]:
    """The refs of the git remote beside branches, with their commits."""
    lines = project.run("git", "ls-remote", "origin").stdout.splitlines()
    pairs = [line.split("\t") for line in lines]
    return {ref: commit for commit, ref in pairs if ref.startswith(("refs/exps/", "refs/noam/"))}


def locked_outputs(project: Project, commit: str) -> dict[str, str]:
    """MD5 of each output in the dvc.lock of an experiment, without the receipt of the last stage."""
    import yaml

    stages = yaml.safe_load(project.run("git", "show", f"{commit}:dvc.lock").stdout)["stages"]
    return {out["path"]: out["md5"] for name, one in stages.items() if name != "track" for out in one["outs"]}


# `noam study run FILE --on …` without the report.
RUN = """
import sys
import stages.numerics
from stages.commands.study import plan_of
from stages.errors import LabError
from stages.studies import whole

def say(line):
    print(line, flush=True)

plan = plan_of("small.yaml", smoke=False)
try:
    account = whole.run(plan, on=sys.argv[1], slurm=sys.argv[2:], say=say)
except LabError as error:
    sys.exit(f"error: {error}")
for name, what in account.strange.items():
    say(f"{name}: {what}")
say(f"{len(account.ran)} ran {len(account.known)} known {len(account.failed)} failed")
"""


def study(project: Project, *on: str, **environment: str) -> subprocess.Popen[str]:
    """Run the small study on other machines, started; its output is read at the end."""
    return project.start(sys.executable, "-c", RUN, *on, **environment)


def ended(process: subprocess.Popen[str], seconds: float = 120) -> str:
    """What it said, when it has ended."""
    output, _ = process.communicate(timeout=seconds)
    return output


def until(condition: Callable[[], Any], seconds: float = 60, why: str = "") -> Any:
    """What a condition gives when it is true."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, why or "never came true"
        time.sleep(0.05)
    return found


def sent(project: Project, run_state: Path | None = None) -> list[str]:
    """How far the variants are that other machines work on."""
    folder = (run_state or project.root / ".runstate") / "studies/sent"
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            found.append(json.loads(path.read_text(encoding="utf-8"))["state"])
        except FileNotFoundError:  # it is back
            continue
    return found


class Cluster:
    """A scheduler of Dask and its workers, real processes on loopback, with the installation under test.

    Args:
        folder: for their logs and scratch folders.
        tls: options of both for certificates.
    """

    def __init__(self, folder: Path, tls: Sequence[str] = ()) -> None:
        self.folder, self._tls = folder, list(tls)
        self.scratch = folder / "scratch"
        self.processes: list[subprocess.Popen[bytes]] = []
        self.scheduler = self.start_scheduler()

    def start_scheduler(self, host: str = "127.0.0.1") -> subprocess.Popen[bytes]:
        self._file = self.folder / f"scheduler-{len(self.processes)}.json"
        protocol = ["--protocol", "tls"] if self._tls else []
        options = ["--host", host, "--port", "0", "--no-dashboard", *protocol, *self._tls]
        process = self._start("scheduler", *options, "--scheduler-file", str(self._file))
        until(lambda: self._file.is_file() and self._file.stat().st_size > 0, why=self.log)
        self.address = json.loads(until(self._file.read_text))["address"]
        return process

    @property
    def log(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-3000:] for path in self.folder.glob("dask-*.log"))

    @property
    def place(self) -> str:
        """What `--on` is told."""
        return self.address.replace("tcp://", "dask://")

    def start_worker(self, **environment: str) -> subprocess.Popen[bytes]:
        """One with one thread and no nanny: killed is killed."""
        options = ["--host", "127.0.0.1", "--nthreads", "1", "--no-nanny", "--no-dashboard", *self._tls]
        local = ["--local-directory", str(self.folder / "dask"), "--death-timeout", "20"]
        return self._start("worker", "--scheduler-file", str(self._file), *options, *local, **environment)

    def _start(self, what: str, *options: str, **environment: str) -> subprocess.Popen[bytes]:
        env = clean_environment(PYTHONPATH=str(ROOT), NOAM_SCRATCH=str(self.scratch), **environment)
        with open(self.folder / f"dask-{len(self.processes)}-{what}.log", "wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"distributed.cli.dask_{what}", *options],
                cwd=self.folder,
                env=env,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def clones(self) -> list[str]:
        """The scratch folders that are there."""
        return sorted(path.name for path in self.scratch.glob("noam-variant@*"))

    def close(self) -> None:
        for process in reversed(self.processes):
            if process.poll() is None:
                os.kill(process.pid, signal.SIGKILL)
            process.wait()
        until(lambda: not self._left(), 20, "processes of killed workers go on")

    def _left(self) -> list[int]:
        """Processes of variants that go on although their worker is gone."""
        return [
            process.pid
            for process in psutil.process_iter(["cmdline"])
            if any(str(self.scratch) in part for part in process.info["cmdline"] or ())
        ]
