"""Variants as jobs of Slurm: `noam study run FILE --on slurm --slurm partition=cpu --slurm time=60`.

submitit writes the jobs and reads their results from `.runstate/slurm`, which has to lie where the nodes see it. What
becomes of a job is asked from `squeue`, since not every Slurm keeps accounts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.errors import StudyError, nearest
from stages.studies.engines.base import Event
from stages.studies.messages import Result, Work
from stages.studies.remote import run_variant

_SHORT = {"cpus": "cpus_per_task", "name": "job_name", "gpus": "gpus_per_node"}
_PAUSE, _GRACE = 1.0, 15.0  # seconds: for a result of a job that is over to be seen through a shared file system
_RUNS = {"RUNNING", "COMPLETING"}


def options_of(texts: list[str]) -> dict[str, str | int]:
    """`KEY=VALUE` each, several with commas in one text as well; those of NOAM_SLURM first.

    Raises:
        StudyError: something else.
    """
    found: dict[str, str | int] = {}
    listed = [("NOAM_SLURM", os.environ.get("NOAM_SLURM", "")), *(("--slurm", text) for text in texts)]
    for origin, text in listed:
        for pair in filter(None, (part.strip() for part in text.split(","))):
            key, sign, value = (part.strip() for part in pair.partition("="))
            if not (key and sign and value):
                raise StudyError("command line", f"{origin} {pair!r}: expected KEY=VALUE, such as partition=cpu")
            found[_SHORT.get(key, key)] = int(value) if value.isdecimal() else value
    return found


class Slurm:
    """The jobs of a study.

    Args:
        folder: for what submitit writes, and the logs of jobs.
        options: of `sbatch`, as submitit calls them.

    Raises:
        StudyError: submitit or Slurm is not installed, or there is no such option.
    """

    name = "slurm"

    def __init__(self, folder: Path, options: Mapping[str, str | int]) -> None:
        try:
            import submitit
        except ImportError:
            raise StudyError("slurm", "submitit is not installed; `pip install 'noam-lab[slurm]'` brings it") from None
        if shutil.which("sbatch") is None:
            raise StudyError("slurm", "no `sbatch` is on the PATH of this machine")
        known = submitit.SlurmExecutor._valid_parameters()
        if unknown := sorted(options.keys() - known):
            raise StudyError("slurm", f"{unknown[0]}: no such option{nearest(unknown[0], known)}")
        self._folder = folder
        self._executor = submitit.SlurmExecutor(folder=folder)
        # The time is that of the partition, not submitit's five minutes. And Slurm would start a job again on its own,
        # which nobody counts.
        usual = {"job_name": "noam-study", "time": None, "additional_parameters": {"no-requeue": True}}
        self._executor.update_parameters(**usual | dict(options))
        self._jobs: dict[str, Any] = {}
        self._states: dict[str, str] = {}
        self._gone: dict[str, float] = {}

    def submit(self, work: Work) -> None:
        """One that failed before is a new job.

        Raises:
            StudyError: Slurm refuses it.
        """
        from submitit.core.utils import FailedJobError

        try:
            self._jobs[work.key] = self._executor.submit(run_variant, work)
        except (FailedJobError, subprocess.CalledProcessError, OSError) as error:
            raise StudyError("slurm", f"sbatch refuses the job ({_last_line(error)})") from None
        self._states[work.key] = ""
        self._gone.pop(work.key, None)

    def events(self) -> list[Event]:
        time.sleep(_PAUSE)
        queued = self._queue()
        found: list[Event] = []
        for key, job in list(self._jobs.items()):
            if job.paths.result_pickle.exists():
                found.append(self._result(key, job))
                continue
            state, node = queued.get(job.job_id, ("", "")) if queued is not None else ("UNKNOWN", "")
            if state in _RUNS and self._states[key] not in _RUNS:
                found.append(Event(key, "started", host=node))
            if state:
                self._states[key] = state
                self._gone.pop(key, None)
            elif time.monotonic() - self._gone.setdefault(key, time.monotonic()) > _GRACE:
                del self._jobs[key]
                found.append(Event(key, "lost", why=f"job {job.job_id} ended without a result; {self._said(job)}"))
        return found

    def close(self) -> None:
        if self._jobs:
            ids = [job.job_id for job in self._jobs.values()]
            subprocess.run(["scancel", "--state=PENDING", *ids], capture_output=True, check=False)

    def _queue(self) -> dict[str, tuple[str, str]] | None:
        """State and node of each job that is not over; None where Slurm gives no answer."""
        ids = ",".join(job.job_id for job in self._jobs.values())
        states = "PENDING,RUNNING,SUSPENDED,COMPLETING,CONFIGURING,RESIZING,REQUEUED,STOPPED,SIGNALING,STAGE_OUT"
        command = ["squeue", "--noheader", "--format=%i %T %N", f"--states={states}"]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        if asked.returncode or not ids:
            return None
        rows = [line.split() for line in asked.stdout.splitlines()]
        return {row[0]: (row[1], row[2] if len(row) > 2 else "") for row in rows if len(row) > 1}

    def _result(self, key: str, job: Any) -> Event:
        del self._jobs[key]
        try:
            result: Result = job.result()
        except Exception as error:  # of submitit, or what was raised there
            return Event(key, "lost", why=f"job {job.job_id}: {_last_line(error)}")
        return Event(key, "ended", host=result.host, result=result)

    def _said(self, job: Any) -> str:
        """Where to read on."""
        lines = [line for line in (job.stderr() or "").splitlines() if line.strip()]
        return f"{lines[-1].strip()} (logs in {self._folder})" if lines else f"logs in {self._folder}"


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
