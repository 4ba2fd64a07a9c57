"""A study in MLflow: a run with its report, the runs of its variants marked as its members, and what its views show.

Members are found by the fingerprint of their results, so a run may be in several studies. Sending a report again, with
more seeds or other words, brings everything up to date and adds nothing twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError

from stages import files
from stages.analysis.study_text import KINDS, escaped, interval, value
from stages.errors import ArtifactError
from stages.execution import milliseconds
from stages.params import WITHOUT_EFFECT, Params
from stages.tracking.names import (
    STUDY,
    TAG_GROUP,
    TAG_PLACE,
    TAG_ROLE,
    TAG_STUDY,
    TAG_VIEW,
    WARMUP_LOG10,
    name_for_mlflow,
    note_tags,
    shortened,
)
from stages.tracking.store import TAG_FINGERPRINT, Progress, Store, silent, waiting_lock
from stages.tracking.view import StudyView, image_keys, view_links

if TYPE_CHECKING:
    from mlflow.entities import Run

T = TypeVar("T")

RESULTS, MEMBERS = "results.json", "members.json"
_TAG_REPORT = "noam.report"  # a digest of the report that the run has
_NOTE_LENGTH = 7500
_NAME_LENGTH = 5000
_AFTER_ALL_SEEDS = 10**10  # summaries come last
_PAGE = 100  # runs that MLflow's page loads at first


class _Asked(BaseModel):
    metric: str
    text: str = ""


class _Variant(BaseModel):
    variant: str
    n: int
    mean: float | None
    low: float | None
    high: float | None
    diverged: int
    missing: int


class _Difference(BaseModel):
    variant: str
    verdict: str


class _Statement(BaseModel):
    kind: str
    text: str


class _Results(BaseModel):
    """What is read of results.json, which is a `stages.analysis.question.Comparison`."""

    question: _Asked
    variants: list[_Variant]
    differences: list[_Difference]
    statements: list[_Statement]


class _Member(BaseModel):
    """A variant that has results: its name, and the fingerprint of those."""

    variant: str
    fingerprint: str | None


@dataclass(frozen=True)
class _Found:
    """The runs of a variant: the one with its results, and those of its replicas."""

    head: Run
    replicas: list[Run]

    @property
    def all(self) -> list[Run]:
        return [self.head, *self.replicas]


def missing_members(store: Store, folder: Path) -> list[str]:
    """The variants of a report that have no run in the store.

    Raises:
        ArtifactError: as in `send_study`.
    """
    members = _read(folder / MEMBERS, TypeAdapter(list[_Member]))
    known = {run.data.tags.get(TAG_FINGERPRINT) for run in store.runs() if run.info.lifecycle_stage != "deleted"}
    return [member.variant for member in members if member.fingerprint and member.fingerprint not in known]


def send_study(store: Store, folder: Path, progress: Progress = silent) -> str:
    """Bring the report of a study into MLflow, and mark the runs that it is about.

    Args:
        store: which has the runs, or some of them.
        folder: with results.json, members.json and whatever else the report has; the study is called like it.
        progress: is told of every step.

    Returns:
        What was sent, and which members are not there, for the user.

    Raises:
        ArtifactError: one of the two files is missing or is not what a study writes.
    """
    name = name_for_mlflow(folder.resolve().name)
    results = _read(folder / RESULTS, TypeAdapter(_Results))
    members = _read(folder / MEMBERS, TypeAdapter(list[_Member]))
    runs = [run for run in store.runs() if run.info.lifecycle_stage != "deleted"]
    found = _find(members, runs)
    progress("members")
    _mark(store, name, found, runs, progress)
    own = _study_run(store, name, found)
    _send_report(store, own, folder)
    progress("report")
    view = _view(store, name, results, found)
    note = note_tags(own.data.tags, _note(store, own, view, results, found))
    _send(store, own, {TAG_VIEW: view.model_dump_json(), **note}, _counts(results))
    _end(store, own, found)
    progress("study")
    return _account(name, members, found)


def _read(path: Path, kind: TypeAdapter[T]) -> T:
    try:
        return kind.validate_python(files.read_json(path))
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ArtifactError(path, f"{place}: {first['msg'].lower()}; `noam study report` writes it anew") from None


def _find(members: Sequence[_Member], runs: Sequence[Run]) -> dict[str, _Found]:
    """The runs of each variant that has some, the newest with its results."""
    by_fingerprint = {run.data.tags.get(TAG_FINGERPRINT): run for run in runs}  # the oldest come first
    by_group: dict[str, list[Run]] = {}
    for run in runs:
        if TAG_GROUP in run.data.tags:
            by_group.setdefault(run.data.tags[TAG_GROUP], []).append(run)
    found = {}
    for member in members:
        head = by_fingerprint.get(member.fingerprint) if member.fingerprint else None
        if head is not None:
            group = by_group.get(head.data.tags.get(TAG_GROUP, ""), [])
            replicas = [run for run in group if run.info.run_id != head.info.run_id]
            found[member.variant] = _Found(head, sorted(replicas, key=_seed))
    return found


def _seed(run: Run) -> int:
    return int(run.data.tags.get("seed", 0))


def _mark(store: Store, name: str, found: Mapping[str, _Found], runs: Sequence[Run], progress: Progress) -> None:
    """Tell the members which variant they are of, and their place: seed by seed, so that the first hundred are paired.

    Runs that are members no more lose these tags.
    """
    variant_key, place_key = f"{TAG_STUDY}.{name}", f"{TAG_PLACE}.{name}"
    members = set()
    for i, (variant, own) in enumerate(found.items()):
        for run in own.all:
            members.add(run.info.run_id)
            first = _AFTER_ALL_SEEDS if own.replicas and run is own.head else _seed(run)
            tags = {variant_key: shortened(variant, _NAME_LENGTH), place_key: f"{first:011} {i:05}"}
            _send(store, run, tags, {WARMUP_LOG10: math.log10(max(1, _warmup(run)))})
            progress("member")
    for run in runs:
        if run.info.run_id not in members:
            for key in {variant_key, place_key} & run.data.tags.keys():
                store.client.delete_tag(run.info.run_id, key)


def _warmup(run: Run) -> int:
    """The updates while the rate rises: none without a ramp, whatever the parameter says."""
    return 0 if run.data.params.get("schedule") == "none" else int(run.data.params.get("warmup", 0))


def _send(store: Store, run: Run, tags: Mapping[str, str], metrics: Mapping[str, float] | None = None) -> None:
    """What the run has not got, or has got otherwise, in one go."""
    from mlflow.entities import Metric, RunTag

    now = milliseconds()
    new = [RunTag(key, text) for key, text in tags.items() if run.data.tags.get(key) != text]
    measured = [
        Metric(key, number, now, 0) for key, number in (metrics or {}).items() if run.data.metrics.get(key) != number
    ]
    if new or measured:
        store.client.log_batch(run.info.run_id, metrics=measured, tags=new)


def _study_run(store: Store, name: str, found: Mapping[str, _Found]) -> Run:
    """The run of a study. It begins with the first of its members, and stands in lists below them."""
    with waiting_lock("runs"):
        for run in store.tagged(TAG_STUDY, name):
            if run.info.lifecycle_stage != "deleted":
                return run
        starts = [run.info.start_time for own in found.values() for run in own.all]
        tags = {TAG_ROLE: STUDY, TAG_STUDY: name, "mlflow.source.name": "noam study", "mlflow.source.type": "LOCAL"}
        made = store.client.create_run(
            store.experiment_id, start_time=min(starts, default=None), tags=tags, run_name=f"study {name}"
        )
        store.client.set_terminated(made.info.run_id, "FINISHED")  # nothing runs, whatever becomes of this process
        return store.client.get_run(made.info.run_id)


def _send_report(store: Store, own: Run, folder: Path) -> None:
    """All files of the report, under their own names; what an earlier one had more is removed."""
    there = sorted(path for path in folder.rglob("*") if path.is_file())
    digest = files.sha256_json({path.relative_to(folder).as_posix(): files.md5_file(path) for path in there})
    if own.data.tags.get(_TAG_REPORT) == digest:
        return
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    repository = get_artifact_repository(own.info.artifact_uri)
    for entry in store.client.list_artifacts(own.info.run_id):
        if not (folder / entry.path).is_file():
            repository.delete_artifacts(entry.path)  # type: ignore[no-untyped-call]
    store.client.log_artifacts(own.info.run_id, str(folder))
    _send(store, own, {_TAG_REPORT: digest})


def _counts(results: _Results) -> dict[str, float]:
    return {
        "study/variants": len(results.variants),
        "study/runs": sum(one.n + one.diverged for one in results.variants),
        "study/diverged": sum(one.diverged for one in results.variants),
        "study/missing": sum(one.missing for one in results.variants),
    }


def _view(store: Store, name: str, results: _Results, found: Mapping[str, _Found]) -> StudyView:
    heads = [own.head for own in found.values()]
    pictured = [run for run in heads if run.data.tags.get("mlflow.loggedImages") == "True"]
    params = {}
    for key in Params.model_fields.keys() - {"warmup", "seed", *WITHOUT_EFFECT}:
        values = {run.data.params.get(key) for run in heads}
        if len(values) > 1:
            params[key] = all(_is_number(one) for one in values)
    return StudyView(
        name=name,
        metric=results.question.metric.replace(".", "_", 1),
        params=dict(sorted(params.items())),
        warmup=len({_warmup(run) for run in heads}) > 1,
        several=any(own.replicas for own in found.values()),
        images=image_keys(store, pictured[0].info.run_id) if pictured else [],
    )


def _is_number(text: str | None) -> bool:
    try:
        return text is not None and math.isfinite(float(text))
    except ValueError:
        return False


def _note(store: Store, own: Run, view: StudyView, results: _Results, found: Mapping[str, _Found]) -> str:
    """The question, links, the answer in words, and a table of the variants with links to their runs."""
    runs = f"#/experiments/{store.experiment_id}/runs"
    links = view_links("", store.experiment_id, [view]).items()
    shown = [f"[{title}]({link.removeprefix('/')})" for title, link in links if title.startswith("study ")]
    shown.append(f"[report]({runs}/{own.info.run_id}/artifacts/index.html)")
    answer = "\n".join(f"- **{KINDS.get(one.kind, one.kind)}**: {escaped(one.text)}" for one in results.statements)
    count = sum(len(one.all) for one in found.values())
    rest = (
        f"The page loads {_PAGE} of the {count} runs, the lowest seeds first; *Load more* under its list brings others."
    )
    parts = [
        *(escaped(results.question.text), " · ".join(shown), rest if count > _PAGE else ""),
        shortened(answer, _NOTE_LENGTH // 2),
    ]
    text = "\n\n".join(part for part in parts if part)
    text += "\n\n| variant | seeds | mean | 95% interval | verdict |\n|---|---|---|---|---|\n"
    verdicts = {one.variant: one.verdict for one in results.differences}
    for i, one in enumerate(results.variants):
        name, member = escaped(one.variant), found.get(one.variant)
        name = f"[{name}]({runs}/{member.head.info.run_id})" if member else f"{name} (not in MLflow)"
        low, high = (math.nan if bound is None else bound for bound in (one.low, one.high))
        verdict = verdicts.get(one.variant, "baseline")
        row = f"| {name} | {one.n} | {value(one.mean)} | {interval(low, high)} | {verdict} |\n"
        if len(text) + len(row) > _NOTE_LENGTH:
            return f"{text}\n… and {len(results.variants) - i} more, which the report has"
        text += row
    return text


def _end(store: Store, own: Run, found: Mapping[str, _Found]) -> None:
    """Finished when the last of its members was."""
    ends = [run.info.end_time for one in found.values() for run in one.all if run.info.end_time]
    end = max(ends, default=own.info.end_time)
    if (own.info.status, own.info.end_time) != ("FINISHED", end):
        store.client.set_terminated(own.info.run_id, "FINISHED", end)


def _account(name: str, members: Sequence[_Member], found: Mapping[str, _Found]) -> str:
    runs = sum(len(one.replicas) or 1 for one in found.values())
    missing = [member.variant for member in members if member.variant not in found]
    lost = f"; not there, `noam sync` may bring them: {'; '.join(missing)}" if missing else ""
    return f"MLflow: study {name}, {len(found)} of {len(members)} variants, {runs} runs{lost}"
