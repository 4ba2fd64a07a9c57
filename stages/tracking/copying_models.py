"""The models of a run, copied to the run in another store: artifacts, parameters, tags, and the link to the run."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from stages.tracking.copying_files import repository, send_files
from stages.tracking.copying_names import OWN, TAG_COPY, Names, identity_of_model
from stages.tracking.store import Store

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel, Run

_PLACE = re.compile(r"^artifact_path: .*$", re.MULTILINE)  # in the file MLmodel


def models_of(store: Store, run_id: str) -> list[LoggedModel]:
    """The models that a run has made, the oldest first."""
    condition = f"source_run_id = '{run_id}'"
    found = list(store.client.search_logged_models([store.experiment_id], condition))
    return sorted(found, key=lambda one: (one.creation_timestamp, one.model_id))


def copy_models(source: Store, target: Store, run: Run, there: Run, names: Names) -> tuple[int, list[str]]:
    """Give the run `there` the models of `run` that it has not got.

    A model is linked to its run only after its files are there, which leaves time to see that somebody else has made
    the same one: then the older stays.

    Returns:
        How much was sent, and what differs and was left so.
    """
    from mlflow.entities import LoggedModelStatus

    sent = 0
    differing: list[str] = []
    for model in models_of(source, run.info.run_id):
        if model.status != LoggedModelStatus.READY:
            continue
        copy = _find(target, there, model)
        if copy is None:
            sent += 1
            made = _create(target, there, model, names)
            sent += _send(source, target, model, made, names, [])
            copy = _find(target, there, model) or made
        names.ids[model.model_id] = copy.model_id
        sent += _send(source, target, model, copy, names, differing)
        sent += _link(target, run, there, model, copy)
        if copy.status != LoggedModelStatus.READY:
            target.client.finalize_logged_model(copy.model_id, LoggedModelStatus.READY)
            sent += 1
    return sent, differing


def drop_models(target: Store, run: Run) -> None:
    """Delete the models that were made for a run that does not count."""
    for model in models_of(target, run.info.run_id):
        if TAG_COPY in model.tags:
            target.client.delete_logged_model(model.model_id)


def _find(target: Store, there: Run, model: LoggedModel) -> LoggedModel | None:
    """The copy of a model; of several that were made at once the oldest, and the others are removed."""
    identity = identity_of_model(model)
    found = [one for one in models_of(target, there.info.run_id) if identity_of_model(one) == identity]
    for other in found[1:]:
        if TAG_COPY in other.tags:
            target.client.delete_logged_model(other.model_id)
    return found[0] if found else None


def _create(target: Store, there: Run, model: LoggedModel, names: Names) -> LoggedModel:
    return target.client.create_logged_model(
        target.experiment_id,
        name=model.name,
        source_run_id=there.info.run_id,
        tags={**_tags(model, names), TAG_COPY: identity_of_model(model)},
        params=dict(model.params),
        model_type=model.model_type,
    )


def _send(
    source: Store, target: Store, model: LoggedModel, copy: LoggedModel, names: Names, differing: list[str]
) -> int:
    """Files, parameters and tags; what differs is added to the list."""
    ids = Names(names.experiments, {**names.ids, model.model_id: copy.model_id})

    def rewriting(text: str) -> str:  # of a project that was moved it has the former place still
        return ids.text(_PLACE.sub(lambda _: f"artifact_path: {copy.artifact_location}", text))

    files = send_files(
        repository(model.artifact_location, source.uri), repository(copy.artifact_location, target.uri), rewriting
    )
    differing += [f"file {name} of model {model.name}" for name in files.differing]
    differing += [
        f"parameter {key} of model {model.name}" for key, value in model.params.items() if copy.params.get(key) != value
    ]
    tags = _tags(model, names)
    differing += [f"tag {key} of model {model.name}" for key in tags if copy.tags.get(key, tags[key]) != tags[key]]
    missing = {key: value for key, value in tags.items() if key not in copy.tags}
    if missing:
        target.client.set_logged_model_tags(copy.model_id, missing)
    return len(files.files) + len(missing)


def _tags(model: LoggedModel, names: Names) -> dict[str, str]:
    return {key: names.text(value) for key, value in model.tags.items() if key not in OWN}


def _link(target: Store, run: Run, there: Run, model: LoggedModel, copy: LoggedModel) -> int:
    """Name the model among the outputs of the run, at the same step."""
    from mlflow.entities import LoggedModelOutput

    steps = {one.model_id: one.step for one in (run.outputs.model_outputs if run.outputs else [])}
    now = target.client.get_run(there.info.run_id)
    known = {one.model_id for one in (now.outputs.model_outputs if now.outputs else [])}
    if model.model_id not in steps or copy.model_id in known:
        return 0
    target.client.log_outputs(there.info.run_id, [LoggedModelOutput(copy.model_id, step=steps[model.model_id])])
    return 1
