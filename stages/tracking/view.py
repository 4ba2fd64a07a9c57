"""The prepared views of the runs, and of each study: what the links of `noam ui` open.

MLflow keeps a shared view as a tag of the experiment, `mlflow.sharedViewState.<key>` = "deflate;" + base64 of the
zlib-compressed JSON of the page's state. That is not documented, so mlflow is pinned, and a test looks at the page.
"""

from __future__ import annotations

import base64
import json
import uuid
import zlib
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict

from stages import paths
from stages.tracking.names import (
    COUNTED,
    COUNTED_OF_STUDY,
    NOTE,
    STUDY,
    SUMMARISED,
    TAG_PLACE,
    TAG_ROLE,
    TAG_STUDY,
    TAG_VIEW,
    WARMUP_LOG10,
    note_tags,
)
from stages.tracking.store import TAG_FINGERPRINT, Store

CURVES, PICTURES = "noam", "noam-pictures"  # keys of the two views
SHARED_VIEW = "mlflow.sharedViewState."
_NAMESPACE = uuid.UUID("0b0ff2f8-6f57-4a3c-8a9e-6f1f0d9f7c11")

# section → metrics drawn against the step; True: on a logarithmic axis
_LINES = {
    "eval": {
        "train_loss": True,
        "valid_loss": True,
        "train_perplexity": True,
        "valid_perplexity": True,
        "train_accuracy": False,
        "valid_accuracy": False,
    },
    "window": {"loss_mean": True, "loss_max": True},
    "optim": {"lr": True, "grad_norm": True},
    "train": {"loss": True},
}
# section → cards in a row, height of a card in pixels
_SIZES = {
    "pictures": (1, 900),
    "compare": (1, 360),
    "final": (4, 300),
    "summary": (4, 300),
    "eval": (3, 360),
    "window": (2, 360),
    "optim": (2, 360),
    "train": (1, 360),
}
_FINAL = [f"{split}_{name}" for split in paths.SPLITS for name in ("loss", "excess", "perplexity", "accuracy")]
_HIDDEN = [f"{split}_{name}" for split in paths.SPLITS for name in ("tokens", "sentences", "unknown_share", "floor")]
_SUMMARY = [*COUNTED, *(f"{split}_{name}" for split in paths.SPLITS for name in SUMMARISED)]
_OF_STUDIES = [WARMUP_LOG10.rpartition("/")[2], *COUNTED_OF_STUDY]
_COLUMNS = [
    "attributes.`Dataset`",
    *(f"params.`{name}`" for name in ("warmup", "seed", "optimizer", "schedule", "loss")),
    *(f"metrics.`final/train_{name}`" for name in ("loss", "excess", "perplexity")),
    *(f"metrics.`summary/train_{name}`" for name in ("loss", "loss_std")),
]


class StudyView(BaseModel):
    """What the views of a study show.

    Attributes:
        name: of the study.
        metric: that its question is about, such as `train_loss`.
        params: parameters that differ between its variants, without the warm-up; True: they are numbers.
        warmup: the warm-up differs between its variants.
        several: its variants have several seeds each, and so a summary.
        images: keys of the pictures of a variant.
    """

    model_config = ConfigDict(frozen=True)
    name: str
    metric: str
    params: dict[str, bool] = {}
    warmup: bool = False
    several: bool = True
    images: list[str] = []

    @property
    def keys(self) -> tuple[str, str]:
        """Of the view with the curves, and of the one with the pictures."""
        return f"study-{self.name}", f"study-{self.name}-pictures"

    def filter(self, *, heads: bool) -> str:
        """Its runs; or of each variant only the one that has its results."""
        own = f"tags.`{TAG_STUDY}.{self.name}` LIKE '%'"
        return f"{own} AND tags.`{TAG_FINGERPRINT}` LIKE '%'" if heads else own


def view_links(address: str, experiment_id: str, studies: Iterable[StudyView] = ()) -> dict[str, str]:
    """What a server at `address` can show at once, by title."""
    page = f"{address.rstrip('/')}/#/experiments/{experiment_id}/runs?workflowType=machine_learning"
    shown = [
        ("curves by warm-up", CURVES, "&compareRunsMode=CHART"),
        ("attention side by side", PICTURES, "&compareRunsMode=CHART"),
        ("next words side by side", PICTURES, "&compareRunsMode=ARTIFACT"),
        ("table of runs", PICTURES, ""),
    ]
    for study in studies:
        curves, pictures = study.keys
        shown.append((f"study {study.name}", curves, "&compareRunsMode=CHART"))
        shown.append((f"study {study.name}, attention", pictures, "&compareRunsMode=CHART"))
        shown.append((f"study {study.name}, next words", pictures, "&compareRunsMode=ARTIFACT"))
    return {title: f"{page}&viewStateShareKey={quote(key)}{mode}" for title, key, mode in shown}


def studies_of(store: Store) -> list[StudyView]:
    """The studies in the store, the oldest first."""
    condition = f"tags.`{TAG_ROLE}` = '{STUDY}' AND tags.`{TAG_VIEW}` LIKE '%'"
    runs = store.client.search_runs([store.experiment_id], condition, order_by=["start_time ASC"])
    return [StudyView.model_validate_json(run.data.tags[TAG_VIEW]) for run in runs]


def refresh_view(store: Store) -> None:
    """Write the views onto the experiment, unless they are there as they should be; those of deleted studies go."""
    tags = store.client.get_experiment(store.experiment_id).tags
    studies = studies_of(store)
    wanted = {
        SHARED_VIEW + CURVES: encode(view_state(grouped=True, images=[])),
        SHARED_VIEW + PICTURES: encode(view_state(grouped=False, images=_newest_images(store))),
    }
    for study in studies:
        curves, pictures = study.keys
        wanted[SHARED_VIEW + curves] = encode(view_state(grouped=True, images=[], study=study))
        wanted[SHARED_VIEW + pictures] = encode(view_state(grouped=False, images=study.images, study=study))
    if tags.get(NOTE) == _note(store, []):  # before there were digests of notes
        del tags[NOTE]
    wanted |= note_tags(tags, _note(store, studies))
    for key, value in wanted.items():
        if tags.get(key) != value:
            store.client.set_experiment_tag(store.experiment_id, key, value)
    for key in tags.keys() - wanted.keys():
        if key.startswith(f"{SHARED_VIEW}study-"):
            store.client.delete_experiment_tag(store.experiment_id, key)


def _note(store: Store, studies: Iterable[StudyView]) -> str:
    links = view_links("", store.experiment_id, studies).items()
    listed = " · ".join(f"[{title}]({link.removeprefix('/')})" for title, link in links)
    return f"Language models under the Noam optimiser: {listed}"


def image_keys(store: Store, run_id: str) -> list[str]:
    """The keys of the pictures of a run."""
    paths = [file.path for file in store.client.list_artifacts(run_id, "images")]
    return sorted({path.rpartition("/")[2].partition("+")[0].replace("~", "/") for path in paths})


def _newest_images(store: Store) -> list[str]:
    """The keys of the pictures of the newest run that has some."""
    newest = store.client.search_runs(
        [store.experiment_id], "tags.`mlflow.loggedImages` = 'True'", max_results=1, order_by=["start_time DESC"]
    )
    return image_keys(store, newest[0].info.run_id) if newest else []


def encode(state: dict[str, Any]) -> str:
    """A state of the page as the value of the tag."""
    content = json.dumps(state, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    return "deflate;" + base64.b64encode(zlib.compress(content, 9)).decode("ascii")


def decode(value: str) -> dict[str, Any]:
    """The state in the value of a tag."""
    state: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(value.removeprefix("deflate;"))))
    return state


def view_state(*, grouped: bool, images: list[str], study: StudyView | None = None) -> dict[str, Any]:
    """Charts in sections, and the columns of the table.

    Args:
        grouped: one curve a warm-up, or a variant of the study, with mean and band over the seeds; MLflow shows no
            pictures then. Otherwise the runs of replicas are folded up below their summary, which has the pictures.
        images: keys of the pictures, for a table with a column a run.
        study: whose runs alone are shown, with its variants in their order.
    """
    sections = _sections(grouped, study)
    charts = _comparisons(grouped, study)
    if not grouped:
        charts += (
            [_card("pictures", "IMAGE", "images", imageKeys=images, step=0, showRunParams=False)] if images else []
        )
        charts += [_card(key.rpartition("/")[0], "IMAGE", key, imageKeys=[key], deleted=True) for key in images]
    bars = [_bar("final", name) for name in _FINAL] + [_bar("final", name, deleted=True) for name in _HIDDEN]
    where = "final" if grouped else "summary"  # a section without a chart would be shown as such
    bars += [_bar("summary", name, where, deleted=grouped or not name.endswith("_loss")) for name in _SUMMARY]
    bars += [_bar("study", name, "compare", deleted=True) for name in _OF_STUDIES]
    drawn = {chart.get("metricKey") for chart in charts}
    charts += [bar for bar in bars if bar["metricKey"] not in drawn]
    for section, lines in _LINES.items():
        charts += [_line(section, name, logarithmic) for name, logarithmic in lines.items()]
    shown = {_identity(name) for name in sections}
    side_by_side = {"compare": 3} if study else {}
    return {
        "orderByKey": f"tags.`{TAG_PLACE}.{study.name}`" if study else "attributes.start_time",
        "orderByAsc": study is not None,
        "searchFilter": study.filter(heads=not grouped) if study else "",
        "selectedColumns": _COLUMNS,
        "runsHiddenMode": "SHOWALL" if study and grouped else "FIRST_20_RUNS" if study or grouped else "FIRST_10_RUNS",
        "compareRunCharts": [chart for chart in charts if chart["metricSectionId"] in shown],
        "compareRunSections": [
            _section(name, unfolded=grouped or study is not None or name == "pictures", columns=side_by_side.get(name))
            for name in sections
        ],
        "isAccordionReordered": True,
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "groupBy": _group_by(study) if grouped else None,
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
    }


def _sections(grouped: bool, study: StudyView | None) -> list[str]:
    """In their order: of a study first what it asks, and no curves where only summaries are shown."""
    if grouped:
        return ["compare", *_LINES, "final"] if study else ["compare", "final", *_LINES]
    if study and study.several:
        return ["pictures", "compare", "summary"]
    return ["pictures", "compare", "summary", "final", *_LINES]


def _group_by(study: StudyView | None) -> dict[str, Any]:
    key = ("tag", f"{TAG_STUDY}.{study.name}") if study else ("param", "warmup")
    return {"aggregateFunction": "average", "groupByKeys": [{"mode": key[0], "groupByData": key[1]}]}


def _comparisons(grouped: bool, study: StudyView | None) -> list[dict[str, Any]]:
    """Parallel coordinates of what differs and what comes out; of a study that by variant and by warm-up too.

    Of groups MLflow knows the means of numbers alone, and draws no parallel coordinates with text, nor with runs that
    lack a parameter, as that of a study does.
    """
    if study is None:
        return [] if grouped else [_parallel(["warmup", "lr", "seed"], ["final/train_loss"])]
    kind = "summary" if study.several and not grouped else "final"
    metric = f"{kind}/{study.metric}"
    charts = [_bar(kind, study.metric, "compare")]
    params = [name for name, is_number in study.params.items() if is_number or not grouped]
    measures = [metric]
    if study.warmup:
        measures.insert(0, WARMUP_LOG10)
        axes = {name: {"key": key, "type": "METRIC"} for name, key in (("xaxis", WARMUP_LOG10), ("yaxis", metric))}
        charts.append(_card("compare", "SCATTER", f"{metric} by warm-up", **axes))
    return charts + ([_parallel(params, measures)] if len(params) + len(measures) > 1 else [])


def _identity(*parts: str) -> str:
    return str(uuid.uuid5(_NAMESPACE, "/".join(parts)))


def _section(name: str, *, unfolded: bool, columns: int | None = None) -> dict[str, Any]:
    size = {"columns": columns or _SIZES[name][0], "cardHeight": _SIZES[name][1]}
    return {"uuid": _identity(name), "name": name, "display": unfolded, "isReordered": True, "deleted": False, **size}


def _card(section: str, kind: str, title: str, **more: Any) -> dict[str, Any]:
    return {
        "uuid": _identity(section, kind, title),
        "type": kind,
        "metricSectionId": _identity(section),
        "displayName": title,
        "deleted": False,
        "isGenerated": False,
        "runsCountToCompare": 20,
        **more,
    }


def _line(section: str, name: str, logarithmic: bool) -> dict[str, Any]:
    return _card(
        section,
        "LINE",
        name,
        metricKey=f"{section}/{name}",
        selectedMetricKeys=[f"{section}/{name}"],
        scaleType="log" if logarithmic else "linear",
        xAxisScaleType="linear",
        xAxisKey="step",
        yAxisKey="metric",
        yAxisExpressions=[],
        range={},
        lineSmoothness=0,
        selectedXAxisMetricKey="",
        ignoreOutliers=False,
        useGlobalXaxisKey=True,
        useGlobalLineSmoothing=True,
    )


def _bar(kind: str, name: str, section: str = "final", *, deleted: bool = False) -> dict[str, Any]:
    key = f"{kind}/{name}"
    return _card(section, "BAR", key, metricKey=key, selectedMetricKeys=[key], deleted=deleted)


def _parallel(params: list[str], metrics: list[str]) -> dict[str, Any]:
    measured = {"selectedParams": params, "selectedMetrics": metrics}
    return _card("compare", "PARALLEL", " · ".join([*params, *metrics]), showAllRuns=True, **measured)
