"""The prepared view of the runs: what the link of `noam ui` opens.

MLflow keeps a shared view as a tag of the experiment, `mlflow.sharedViewState.<key>` = "deflate;" + base64 of the
zlib-compressed JSON of the page's state. That is not documented, so mlflow is pinned, and a test looks at the page.
"""

from __future__ import annotations

import base64
import json
import uuid
import zlib
from typing import Any

from stages import paths
from stages.tracking.names import COUNTED, SUMMARISED
from stages.tracking.store import Store

CURVES, PICTURES = "noam", "noam-pictures"  # keys of the two views
_TAG = "mlflow.sharedViewState."
_NAMESPACE = uuid.UUID("0b0ff2f8-6f57-4a3c-8a9e-6f1f0d9f7c11")
_NOTE = "mlflow.note.content"

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
_COLUMNS = [
    "attributes.`Dataset`",
    *(f"params.`{name}`" for name in ("warmup", "seed", "optimizer", "schedule", "loss")),
    *(f"metrics.`final/train_{name}`" for name in ("loss", "excess", "perplexity")),
    *(f"metrics.`summary/train_{name}`" for name in ("loss", "loss_std")),
]


def view_links(address: str, experiment_id: str) -> dict[str, str]:
    """What a server at `address` can show at once, by title."""
    page = f"{address.rstrip('/')}/#/experiments/{experiment_id}/runs?workflowType=machine_learning"
    return {
        "curves by warm-up": f"{page}&viewStateShareKey={CURVES}&compareRunsMode=CHART",
        "attention side by side": f"{page}&viewStateShareKey={PICTURES}&compareRunsMode=CHART",
        "next words side by side": f"{page}&viewStateShareKey={PICTURES}&compareRunsMode=ARTIFACT",
        "table of runs": f"{page}&viewStateShareKey={PICTURES}",
    }


def refresh_view(store: Store) -> None:
    """Write the views onto the experiment, unless they are there as they should be."""
    tags = store.client.get_experiment(store.experiment_id).tags
    wanted = {
        _TAG + CURVES: encode(view_state(grouped=True, images=[])),
        _TAG + PICTURES: encode(view_state(grouped=False, images=_newest_images(store))),
    }
    if _NOTE not in tags:  # one that the user has changed stays
        links = view_links("", store.experiment_id).items()
        listed = " · ".join(f"[{title}]({link.removeprefix('/')})" for title, link in links)
        wanted[_NOTE] = f"Language models under the Noam optimiser: {listed}"
    for key, value in wanted.items():
        if tags.get(key) != value:
            store.client.set_experiment_tag(store.experiment_id, key, value)


def _newest_images(store: Store) -> list[str]:
    """The keys of the pictures of the newest run that has some."""
    newest = store.client.search_runs(
        [store.experiment_id], "tags.`mlflow.loggedImages` = 'True'", max_results=1, order_by=["start_time DESC"]
    )
    if not newest:
        return []
    paths = [file.path for file in store.client.list_artifacts(newest[0].info.run_id, "images")]
    return sorted({path.rpartition("/")[2].partition("+")[0].replace("~", "/") for path in paths})


def encode(state: dict[str, Any]) -> str:
    """A state of the page as the value of the tag."""
    content = json.dumps(state, ensure_ascii=True, separators=(",", ":")).encode("ascii")
    return "deflate;" + base64.b64encode(zlib.compress(content, 9)).decode("ascii")


def decode(value: str) -> dict[str, Any]:
    """The state in the value of a tag."""
    state: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(value.removeprefix("deflate;"))))
    return state


def view_state(*, grouped: bool, images: list[str]) -> dict[str, Any]:
    """Charts in sections, and the columns of the table.

    Args:
        grouped: one curve a warm-up, with mean and band over the seeds; MLflow shows no pictures then. Otherwise the
            runs of replicas are folded up below their summary, which has the pictures.
        images: keys of the pictures, for a table with a column a run.
    """
    charts = [_parallel("warmup", "lr") if grouped else _parallel("warmup", "lr", "seed")]
    if not grouped:
        charts += (
            [_card("pictures", "IMAGE", "images", imageKeys=images, step=0, showRunParams=False)] if images else []
        )
        charts += [_card(key.rpartition("/")[0], "IMAGE", key, imageKeys=[key], deleted=True) for key in images]
    charts += [_bar("final", name) for name in _FINAL] + [_bar("final", name, deleted=True) for name in _HIDDEN]
    where = "final" if grouped else "summary"  # a section without a chart would be shown as such
    charts += [_bar("summary", name, where, deleted=grouped or not name.endswith("_loss")) for name in _SUMMARY]
    for section, lines in _LINES.items():
        charts += [_line(section, name, logarithmic) for name, logarithmic in lines.items()]
    sections = ["compare", "final", *_LINES] if grouped else ["pictures", "compare", "summary", "final", *_LINES]
    by_warmup = {"aggregateFunction": "average", "groupByKeys": [{"mode": "param", "groupByData": "warmup"}]}
    return {
        "orderByKey": "attributes.start_time",
        "orderByAsc": False,
        "searchFilter": "",
        "selectedColumns": _COLUMNS,
        "runsHiddenMode": "FIRST_20_RUNS" if grouped else "FIRST_10_RUNS",
        "compareRunCharts": charts,
        "compareRunSections": [_section(name, unfolded=grouped or name == "pictures") for name in sections],
        "isAccordionReordered": True,
        "useGroupedValuesInCharts": True,
        "hideEmptyCharts": True,
        "groupBy": by_warmup if grouped else None,
        "globalLineChartConfig": {"xAxisKey": "step", "lineSmoothness": 0, "selectedXAxisMetricKey": ""},
    }


def _identity(*parts: str) -> str:
    return str(uuid.uuid5(_NAMESPACE, "/".join(parts)))


def _section(name: str, *, unfolded: bool) -> dict[str, Any]:
    columns, height = _SIZES[name]
    size = {"columns": columns, "cardHeight": height}
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


def _parallel(*params: str) -> dict[str, Any]:
    """Warm-up, rate and final loss."""
    measured = {"selectedParams": list(params), "selectedMetrics": ["final/train_loss"]}
    return _card("compare", "PARALLEL", "warm-up, rate and final loss", showAllRuns=True, **measured)
