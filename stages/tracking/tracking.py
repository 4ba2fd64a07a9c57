"""What the stage `track` does: hand the results of this workspace to MLflow, or keep them until it can take them."""

from __future__ import annotations

import os
from pathlib import Path

from stages import files, paths
from stages.errors import ArtifactError
from stages.execution import Execution
from stages.params import Params
from stages.tracking import outbox
from stages.tracking.attempt import attempt
from stages.tracking.fingerprint import fingerprint_of_folder
from stages.tracking.groups import members
from stages.tracking.live import stop_follower
from stages.tracking.restore import restored_execution

_REPLACED = "never finished: other results took the place of its own"


def results_fingerprint() -> str:
    """The fingerprint of the results in this workspace.

    Raises:
        ArtifactError: dvc.lock does not know all stages.
    """
    found = fingerprint_of_folder()
    if found is None:
        raise ArtifactError(paths.LOCK, "does not list all stages; `dvc repro` runs those before this one")
    return found


def current_execution(params: Params, fingerprint: str) -> Execution | None:
    """The execution that made these results, closed as finished; None if they came from a cache or a checkout."""
    execution = Execution.current()
    if execution is None:
        return None
    stop_follower(execution)
    if not _made_these_results(execution, params):
        execution.close("killed", _REPLACED)
        return None
    outbox.set_fingerprint(execution, fingerprint, Path())
    execution.close("finished")
    return execution


def send_or_keep(execution: Execution | None, fingerprint: str) -> tuple[bool, str]:
    """Bring the results into MLflow; where that fails, keep a copy of them for `noam sync`.

    Returns:
        Whether MLflow has them, and what to tell the user: the reason, or a note.
    """
    experiment = os.environ.get("DVC_EXP_NAME", "")
    arguments = ["--fingerprint", fingerprint, "--experiment", experiment]
    if execution is not None:
        arguments += ["--execution", execution.id]
    log = paths.run_state() / "track.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    sent, message = attempt(arguments, log)
    if not sent:
        execution = execution or restored_execution(Path(), fingerprint)
        outbox.add_experiment(execution, experiment)
        outbox.keep(execution, Path())
    return sent, message


def _made_these_results(execution: Execution, params: Params) -> bool:
    """Same parameters, and the losses that it journalled are those of the history that lies here."""
    if not execution.has(params.model_dump()):
        return False
    replicas = members(execution)
    if not replicas:
        return params.replicas == 1 and _is_history_of(execution, paths.HISTORY)
    own = paths.MODEL / "replicas"
    return params.replicas == len(replicas) and all(
        _is_history_of(one, own / str(one.record.seed) / paths.HISTORY.name) for one in replicas
    )


def _is_history_of(execution: Execution, file: Path) -> bool:
    if not file.is_file():
        return False
    history = {record["step"]: record["loss"] for record in files.read_json(file)}
    journalled = {entry["s"]: entry["m"].get("train/loss") for entry in execution.entries() if "m" in entry}
    return all(history.get(step) == loss for step, loss in journalled.items() if loss is not None)
