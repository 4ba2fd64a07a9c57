"""One execution of the pipeline: its journal, and what became of it.

Training does not talk to MLflow. It writes a journal, and `stages.tracking` replays that into MLflow: live through a
follower process, at the end in the stage `track`, or later with `noam sync`. Whatever happens there, training neither
waits nor fails.

Under `.runstate/` of the main workspace, never tracked by DVC or git:

    executions/<id>/execution.json   what was started: parameters, commit, host (`ExecutionRecord`)
    executions/<id>/journal.jsonl    one JSON object a line, appended and flushed:
                                       {"s": 12, "t": 1700000000000, "m": {"train/loss": 2.5}}   metrics of a step
                                       {"event": "trained", "t": …}                  training is over
                                       {"event": "failed" | "killed", "t": …, "message": "…"}
                                       {"event": "finished", "t": …}                 all stages are done
                                       {"event": "resumed", "t": …}                  it goes on after a bad end
    executions/<id>/replicas.json    of an execution with several replicas: the ids of theirs, each an execution itself
    open/<key>                       id of the execution that is under way in one workspace (key: digest of its path)

`s` is the number of optimiser updates done, `t` the time in milliseconds since 1970, UTC.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import psutil
from filelock import FileLock
from pydantic import BaseModel, ConfigDict

from stages import files, paths
from stages.params import WITHOUT_EFFECT
from stages.repository import git_state

_SHELLS = {"sh", "bash", "dash", "zsh", "fish", "ksh"}
_FLUSH_SECONDS = 0.5
_ELSEWHERE_SECONDS = 3600.0  # as long as the stages after training may be silent
OWNER = "NOAM_OWNER"  # environment: the process that runs all stages
ENDS = ("failed", "killed", "finished")


class Process(BaseModel):
    """A process that can be told from a later one with the same number."""

    model_config = ConfigDict(frozen=True)
    pid: int
    created: float
    node: str = ""  # its machine, which may be another one where the run state is shared; "" for this one

    @classmethod
    def of(cls, process: psutil.Process) -> Process:
        return cls(pid=process.pid, created=process.create_time(), node=platform.node())

    @property
    def elsewhere(self) -> bool:
        """On another machine, so that nobody here can tell whether it is alive."""
        return self.node not in ("", platform.node())

    def alive(self) -> bool:
        """It is a process of this machine, and has not ended."""
        try:
            process = psutil.Process(self.pid)
            here = not self.elsewhere and process.create_time() == self.created
            return here and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            return False


class ExecutionRecord(BaseModel):
    """What is known when an execution starts."""

    model_config = ConfigDict(frozen=True)
    id: str
    kind: str  # "trained": this execution trained; "restored": its files came from a cache, a clone or a checkout
    started: int  # milliseconds since 1970
    params: dict[str, Any]
    seed: int
    experiment: str  # DVC's name of the experiment, or ""
    commit: str  # of git, or "unknown"
    dirty: str  # "yes", "no" or "unknown": tracked files differ from that commit
    host: str  # kind of machine, not its name
    workspace: str  # folder of the experiment
    trainer: Process
    owner: Process  # the `dvc` that runs the stages
    parent: str = ""  # of a replica: id of the execution of all of them
    environment: dict[str, str] = {}  # what it computes with: versions, processor, numerics


class Execution:
    """An execution's folder and what can be asked of it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.id = folder.name
        self.journal_path = folder / "journal.jsonl"

    @property
    def record(self) -> ExecutionRecord:
        return ExecutionRecord.model_validate_json((self.folder / "execution.json").read_text(encoding="utf-8"))

    @classmethod
    def create(
        cls,
        kind: str,
        params: Mapping[str, Any],
        *,
        started: int | None = None,
        parent: str = "",
        environment: Mapping[str, str] | None = None,
    ) -> Execution:
        """A new execution of this workspace, with its record written and no journal yet."""
        now = datetime.now(UTC)
        identity = f"{now:%Y%m%d-%H%M%S}-{uuid.uuid4().hex[:8]}"
        commit, dirty = git_state()
        record = ExecutionRecord(
            id=identity,
            kind=kind,
            started=started if started is not None else milliseconds(),
            params=dict(params),
            seed=int(params["seed"]),
            experiment=os.environ.get("DVC_EXP_NAME", ""),
            commit=commit,
            dirty=dirty,
            host=host_kind(),
            workspace=str(Path.cwd().resolve()),
            trainer=Process.of(psutil.Process()),
            owner=_owner_of(parent),
            parent=parent,
            environment=dict(environment or {}),
        )
        execution = cls(paths.run_state() / "executions" / identity)
        execution._write(record)
        return execution

    def has(self, params: Mapping[str, Any]) -> bool:
        """Whether it has these parameters, but for those without effect."""
        own = self.record.params
        return all(own.get(key) == value for key, value in params.items() if key not in WITHOUT_EFFECT)

    def resume(self, parent: str = "") -> None:
        """This process goes on with an execution that another one began."""
        update = {
            "trainer": Process.of(psutil.Process()),
            "owner": _owner_of(parent),
            "experiment": os.environ.get("DVC_EXP_NAME", "") or self.record.experiment,
            "workspace": str(Path.cwd().resolve()),
            "parent": parent,
        }
        self._write(self.record.model_copy(update=update))
        self.append_event("resumed")

    def name(self, experiment: str) -> None:
        """It belongs to an experiment of DVC, which the process that runs it was not told of."""
        self._write(self.record.model_copy(update={"experiment": experiment}))

    def _write(self, record: ExecutionRecord) -> None:
        files.write_text(self.folder / "execution.json", record.model_dump_json(indent=1) + "\n")

    def replicas(self) -> list[Execution]:
        """The executions of its replicas, in the order of their seeds; none where there is only one run."""
        listed = self.folder / "replicas.json"
        found = [Execution.find(identity) for identity in files.read_json(listed)] if listed.is_file() else []
        newest = {one.record.seed: one for one in found if one is not None}  # one that had saved nothing begins anew
        return [newest[seed] for seed in sorted(newest)]

    def add_replica(self, replica: Execution) -> None:
        """To be called by one process alone."""
        listed = self.folder / "replicas.json"
        known = files.read_json(listed) if listed.is_file() else []
        if replica.id not in known:
            files.write_json(listed, [*known, replica.id])

    @classmethod
    def all(cls) -> list[Execution]:
        """Every execution whose record is whole, oldest first."""
        found = sorted((paths.run_state() / "executions").glob("*/execution.json"))
        return [cls(path.parent) for path in found]

    @classmethod
    def find(cls, identity: str) -> Execution | None:
        """The execution of that id, if its record is still there."""
        execution = cls(paths.run_state() / "executions" / identity)
        return execution if identity and (execution.folder / "execution.json").is_file() else None

    @classmethod
    def current(cls) -> Execution | None:
        """The execution that is under way in this workspace, if there is one."""
        pointer = pointer_of(Path.cwd().resolve())
        return cls.find(pointer.read_text(encoding="utf-8").strip()) if pointer.is_file() else None

    def make_current(self) -> None:
        """From now on the stages of this workspace belong to this execution; one left behind was killed."""
        before = Execution.current()
        if before is not None and before.id != self.id and not before.ended():
            trained = any(event["event"] == "trained" for event in before.events())
            how = "trained, but the later stages were never run" if trained else "ended without a word"
            before.append_event("killed", f"{how}; the next execution found it so")
        files.write_text(pointer_of(Path.cwd().resolve()), self.id + "\n")

    def close(self, event: str, message: str = "") -> None:
        """Write how the execution ended, and let go of the workspace."""
        self.append_event(event, message)
        if (current := Execution.current()) is not None and current.id == self.id:
            pointer_of(Path.cwd().resolve()).unlink(missing_ok=True)

    def append_event(self, event: str, message: str = "") -> None:
        entry: dict[str, Any] = {"event": event, "t": milliseconds()}
        if message:
            entry["message"] = message
        with open(self.journal_path, "a+b") as journal:
            end = journal.seek(0, os.SEEK_END)
            journal.seek(max(0, end - 1))
            cut = end > 0 and journal.read(1) != b"\n"  # by a crash, in the middle of a line
            journal.write(b"\n" * cut + json.dumps(entry, ensure_ascii=False).encode("utf-8") + b"\n")

    def entries(self) -> Iterator[dict[str, Any]]:
        """The journal's entries in order; a last line cut short by a crash is left out."""
        if not self.journal_path.is_file():
            return
        with open(self.journal_path, encoding="utf-8") as journal:
            for line in journal:
                if not line.endswith("\n"):
                    return
                try:
                    yield json.loads(line)
                except ValueError:  # a line cut by a crash, which a later event was appended to
                    continue

    def events(self) -> list[dict[str, Any]]:
        """What happened since it began, or since it was resumed."""
        found: list[dict[str, Any]] = []
        for entry in self.entries():
            if entry.get("event") == "resumed":
                found.clear()
            elif "event" in entry:
                found.append(entry)
        return found

    def end(self) -> dict[str, Any] | None:
        """How it ended: the last such event, or None while it goes on."""
        ends = [entry for entry in self.events() if entry["event"] in ENDS]
        return ends[-1] if ends else None

    def ended(self) -> bool:
        """Its end is in the journal."""
        return self.end() is not None

    def alive(self) -> bool:
        """Something still works on it: the training process, or the `dvc` that will run the later stages."""
        record = self.record
        if record.trainer.elsewhere:  # believed for a while after something was last written of it
            return time.time() - max(path.stat().st_mtime for path in self.folder.iterdir()) < _ELSEWHERE_SECONDS
        return record.trainer.alive() or record.owner.alive()

    def trains(self) -> bool:
        """Its training process is there; of another machine as far as can be told from here."""
        trainer = self.record.trainer
        return self.alive() if trainer.elsewhere else trainer.alive()

    def ours(self) -> bool:
        """This process trained it, or the same `dvc` started both."""
        record = self.record
        return record.trainer == Process.of(psutil.Process()) or record.owner == Process.of(_owner())

    def lock(self, timeout: float = -1) -> FileLock:
        """Held by whoever replays this execution into MLflow."""
        return FileLock(self.folder / "sync.lock", timeout=timeout)


class Journal:
    """Appends metrics to an execution's journal, at most two flushes a second.

    A resumed run computes again what it did after its last checkpoint. The journal may have it already; since a run
    always logs the same lines, those that are there are left out, and each step is in it once.

    Args:
        execution: whose journal.
        lines: metric lines logged up to the checkpoint from which the run goes on.
    """

    def __init__(self, execution: Execution, lines: int = 0) -> None:
        path = execution.journal_path
        _cut_to_whole_lines(path)
        self.lines = lines
        self._known = max(lines, sum("m" in entry for entry in execution.entries()))
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (lives as long as training)
        self._flushed = time.monotonic()
        self._waiting: list[dict[str, Any]] = []

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Metrics measured after `step` updates; values that are not finite are for the caller to leave out."""
        self.lines += 1
        if self.lines <= self._known:
            return
        self._waiting.append({"s": step, "t": milliseconds(), "m": dict(metrics)})
        if time.monotonic() - self._flushed > _FLUSH_SECONDS:
            self._flush()

    def _flush(self) -> None:
        """Many lines at once: between two updates of a small model the encoder has left the processor's cache."""
        self._file.writelines(json.dumps(entry) + "\n" for entry in self._waiting)
        self._waiting.clear()
        self._file.flush()
        self._flushed = time.monotonic()

    def sync(self) -> None:
        """Onto the disk with what was logged: a checkpoint is about to count on it."""
        self._flush()
        os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._flush()
        self._file.close()


def _cut_to_whole_lines(path: Path) -> None:
    """Remove a last line that a crash cut short."""
    if path.is_file() and not (content := path.read_bytes()).endswith(b"\n"):
        with open(path, "r+b") as journal:
            journal.truncate(content.rfind(b"\n") + 1)


def start_follower(execution: Execution) -> None:
    """Start the process that replays the journal into MLflow while it grows; nobody waits for it.

    It runs in a session of its own, so that Ctrl-C leaves it time to record the end. NOAM_LIVE=off starts none.
    """
    if os.environ.get("NOAM_LIVE") == "off":
        return
    with open(execution.folder / "follower.log", "ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "stages.tracking.follow", str(execution.folder)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def milliseconds() -> int:
    return time.time_ns() // 1_000_000


def host_kind() -> str:
    """The kind of machine, without its name: 'Linux x86_64, 2 cores'."""
    return f"{platform.system()} {platform.machine()}, {psutil.cpu_count() or 1} cores"


def pointer_of(folder: Path) -> Path:
    """The file that names the execution under way in a folder."""
    key = hashlib.sha256(str(folder).encode("utf-8", "surrogateescape")).hexdigest()[:16]
    return paths.run_state() / "open" / key


def owner_of_this_process() -> int:
    """The number of the process that owns what this one starts, for a fork that would find another (`OWNER`)."""
    return _owner().pid


def _owner_of(parent: str) -> Process:
    """Of a replica the owner of its parent, which started it."""
    execution = Execution.find(parent)
    return execution.record.owner if execution is not None else Process.of(_owner())


def _owner() -> psutil.Process:
    """The `dvc` process above the shell that started this stage; started by hand, whatever started it.

    A study, which does without `dvc`, names itself.
    """
    process = psutil.Process()
    if OWNER in os.environ:
        return psutil.Process(int(os.environ[OWNER]))
    for parent in process.parents():
        if parent.name() in _SHELLS and "-c" in parent.cmdline():
            continue
        return parent
    return process
