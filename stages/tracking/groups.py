"""Which executions are the replicas of which: what their folders say of it, before any of it is in MLflow."""

from __future__ import annotations

from collections.abc import Iterable

from stages import files, paths
from stages.execution import Execution

_LIST = "replicas.json"


def is_group(execution: Execution) -> bool:
    """It has replicas, and no curves of its own."""
    return (execution.folder / _LIST).is_file()


def members(execution: Execution) -> list[Execution]:
    """The replicas that belong to an execution, in the order of their seeds; none of one that is a single run.

    A replica belongs to the newest group that lists it. The record of one that is over still names the group that it
    was trained in, which may have been stopped and gone on with as a larger one.
    """
    if not is_group(execution):
        return []
    taken = {identity for group, listed in _lists() if group > execution.id for identity in listed}
    found = [one for one in execution.replicas() if one.id not in taken]
    own = [one for one in found if "" < one.record.parent <= execution.id]  # ids begin with the time
    return sorted(own, key=lambda one: one.record.seed)


def adopt(executions: Iterable[Execution]) -> None:
    """Let groups whose process died list the replicas that had only just begun."""
    listed = {identity for _, ids in _lists() for identity in ids}
    for one in executions:
        if one.record.parent and one.id not in listed:
            parent = Execution.find(one.record.parent)
            if parent is not None and not parent.trains():
                parent.add_replica(one)


def _lists() -> Iterable[tuple[str, list[str]]]:
    for file in (paths.run_state() / "executions").glob(f"*/{_LIST}"):
        yield file.parent.name, files.read_json(file)
