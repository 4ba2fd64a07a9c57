"""What a run is called in another store: its identity, its digest, and texts with the ids that are valid there.

A run gets a new id in each store. It is known again by the execution that it shows (tag `noam.execution`), or, where it
shows none, by the id that it had in the store it was first copied from (tag `noam.copy`); so is a model.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stages import files
from stages.tracking.names import NOTE, TAG_NOTE, TAG_PARENT, note_tags
from stages.tracking.replay import TAG_RESUMED
from stages.tracking.store import TAG_EXECUTION
from stages.tracking.view import SHARED_VIEW, decode, encode

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel, Run

TAG_COPY = "noam.copy"  # of a copy: the id of what it was first copied from
TAG_CLAIM = "noam.claim"  # of a run made by copying: when, and by whom
TAG_COPIED = "noam.copied"  # of a run copied whole: digests of both sides then, and the id of the other
OWN = (TAG_COPY, TAG_CLAIM, TAG_COPIED)

Identity = tuple[str, str]

_ID = re.compile(r"(?<![0-9a-zA-Z])(?:m-)?[0-9a-f]{32}(?![0-9a-zA-Z])")


def identity_of(run: Run) -> Identity:
    """The tag by which a run is found in another store, and its value."""
    tags = run.data.tags
    if TAG_EXECUTION in tags:
        return TAG_EXECUTION, tags[TAG_EXECUTION]
    return TAG_COPY, tags.get(TAG_COPY, run.info.run_id)


def identity_of_model(model: LoggedModel) -> str:
    """The id that a model had where it was logged."""
    return str(model.tags.get(TAG_COPY, model.model_id))


def by_identity(runs: Iterable[Run]) -> dict[Identity, list[Run]]:
    """Runs with the same identity together."""
    found: dict[Identity, list[Run]] = {}
    for run in runs:
        found.setdefault(identity_of(run), []).append(run)
    return found


def is_deleted(run: Run) -> bool:
    return bool(run.info.lifecycle_stage == "deleted")


def resumed(run: Run) -> int:
    """How often its execution had gone on after a bad end."""
    return int(run.data.tags.get(TAG_RESUMED, "0"))


@dataclass
class Names:
    """Ids of one store and those of the same things in another one.

    Attributes:
        experiments: ids of the experiment, here and there.
        ids: of runs and models there by those here.
    """

    experiments: tuple[str, str]
    ids: dict[str, str] = field(default_factory=dict)

    def inverse(self) -> Names:
        """From there to here."""
        return Names((self.experiments[1], self.experiments[0]), {there: here for here, there in self.ids.items()})

    def text(self, text: str) -> str:
        """A text with the ids that are valid there; unknown ones stay."""
        here, there = (f"#/experiments/{one}" for one in self.experiments)
        text = re.sub(rf"{re.escape(here)}(?!\d)", there, text)
        return _ID.sub(lambda found: self.ids.get(found[0], found[0]), text)

    def tags(self, tags: Mapping[str, str]) -> dict[str, str]:
        """The tags of a run for there. A parent that is not there is left out."""
        found = {key: self.text(value) for key, value in tags.items() if key not in OWN}
        if tags.get(TAG_PARENT) not in self.ids:
            found.pop(TAG_PARENT, None)
        if TAG_NOTE in tags and is_ours(tags):  # its digest is that of the text
            found |= note_tags({}, found[NOTE])
        return found

    def view(self, value: str) -> str:
        """A shared view, which may name runs; one of another form stays as it is."""
        try:
            state = decode(value)
        except (ValueError, zlib.error):
            return value
        text = files.dump_json(state, indent=None)
        return value if self.text(text) == text else encode(json.loads(self.text(text)))

    def experiment_tags(self, tags: Mapping[str, str]) -> dict[str, str]:
        """The tags of the experiment for there."""
        views = {key: self.view(value) for key, value in tags.items() if key.startswith(SHARED_VIEW)}
        return {key: self.text(value) for key, value in tags.items()} | views

    def digest(self, run: Run) -> str:
        """The digest that a copy has there, if all is in it and nothing else."""
        return digest(run, self.tags(run.data.tags))


def digest(run: Run, tags: Mapping[str, str] | None = None) -> str:
    """Of what MLflow's list says of a run, with its own tags or others in their place."""
    if tags is None:
        tags = {key: value for key, value in run.data.tags.items() if key not in OWN}
    metrics = sorted((one.key, repr(one.value), one.timestamp, one.step) for one in run.data._metric_objs)
    info = [run.info.status, run.info.start_time, run.info.end_time, run.info.run_name]
    return files.sha256_json([info, metrics, dict(run.data.params), dict(tags)])[:32]


def is_ours(tags: Mapping[str, str]) -> bool:
    """The note is one that this program wrote, or there is none."""
    return bool(note_tags(tags, ""))
