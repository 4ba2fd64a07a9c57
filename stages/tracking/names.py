"""What MLflow is told of an execution: names, parameters and tags within its limits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from stages.execution import ExecutionRecord
from stages.params import WITHOUT_EFFECT, Params
from stages.tracking.store import TAG_EXECUTION

REPLICA, SUMMARY, STUDY = "replica", "summary", "study"  # values of the tag `noam.role`
TAG_ROLE, TAG_GROUP, TAG_REPLICAS, TAG_PARENT = "noam.role", "noam.group", "noam.replicas", "mlflow.parentRunId"
TAG_REPEAT, TAG_DIVERGED_AT, TAG_DIVERGED = "noam.repeat", "noam.diverged_at", "noam.diverged"
# Of a study's run its name; of a run in it, with that name behind a dot, its variant and its place among the others.
TAG_STUDY, TAG_PLACE = "noam.study", "noam.place"
TAG_VIEW = "noam.view"  # of a study's run: what its prepared views show
NOTE, TAG_NOTE = "mlflow.note.content", "noam.note"  # the second: a digest of the note that is ours
WARMUP_LOG10 = "study/warmup_log10"  # metric of a run in a study: MLflow has no logarithmic axis for parameters
# What a summary has as `summary/<split>_<measure>`, and as `summary/<count>`.
SUMMARISED = (
    *("loss", "loss_std", "loss_low", "loss_high", "excess", "excess_error", "perplexity", "accuracy"),
    *("bits_per_character", "bits_per_byte", "accuracy_top5", "ece", "gain", "agreement_number", "agreement_gender"),
)
COUNTED = ("replicas", "diverged")
COUNTED_OF_STUDY = ("variants", "runs", "diverged", "missing")  # what a study's run has as `study/<count>`

_PARAM_LENGTH = 6000
_KEY_LENGTH = 250
_SEPARATOR = " · "
_ALLOWED = set("_-. :")


def run_name(record: ExecutionRecord, tags: Mapping[str, str]) -> str:
    """The factors of a run: warm-up, seed, whatever else its results depend on and is not at its default.

    Args:
        record: of the execution.
        tags: of the run, which say what it is and how it came out.
    """
    params = record.params
    changed = [
        key
        for key, about in Params.model_fields.items()
        if key in params and key not in {"warmup", "seed", *WITHOUT_EFFECT} and params[key] != about.default
    ]
    factors = {key: f"{key}={_short(params[key])}" for key in ["warmup", "seed", *changed] if key in params}
    replicas = tags.get(TAG_REPLICAS, "1")
    if tags.get(TAG_ROLE) == SUMMARY:
        factors["seed"] = f"seeds {record.seed}–{record.seed + int(replicas) - 1}"
    found = [
        record.experiment,
        "diverged" if TAG_DIVERGED_AT in tags else "",
        f"{tags[TAG_DIVERGED]} of {replicas} diverged" if TAG_DIVERGED in tags else "",
        f"repeat {tags[TAG_REPEAT]}" if TAG_REPEAT in tags else "",
    ]
    rest = "".join(f"{_SEPARATOR}{text}" for text in found if text)
    return shortened(_SEPARATOR.join(factors.values()), _KEY_LENGTH - len(rest)) + rest


def run_tags(record: ExecutionRecord, fingerprint: str | None) -> dict[str, str]:
    """Tags that a run has from its start."""
    tags = {
        TAG_EXECUTION: record.id,
        "noam.kind": record.kind,
        "noam.host": record.host,
        "noam.git_dirty": record.dirty,
        "seed": str(record.seed),
        "dvc.experiment": record.experiment,
        "mlflow.source.name": "dvc exp run" if record.experiment else "dvc repro",
        "mlflow.source.type": "LOCAL",
        "mlflow.source.git.commit": record.commit if record.commit != "unknown" else "",
        "noam.fingerprint": fingerprint or "",
        **{f"noam.env.{key}": shortened(value, _PARAM_LENGTH) for key, value in record.environment.items()},
    }
    return {key: value for key, value in tags.items() if value}


def param_values(params: Mapping[str, Any]) -> dict[str, str]:
    """Parameters as text; a long one is shortened and says so (the run's params.yaml has it whole)."""
    return {name_for_mlflow(key): shortened(_text(value), _PARAM_LENGTH) for key, value in params.items()}


def name_for_mlflow(name: str) -> str:
    """A name with every character that MLflow refuses replaced by `_`: 'acc@1' → 'acc_1', 'pérdida (val)' → …"""
    allowed = "".join(c if c.isalnum() or c in _ALLOWED or c == "/" else "_" for c in name)
    parts = [part for part in allowed.split("/") if part not in ("", ".", "..")]
    return "/".join(parts)[:_KEY_LENGTH] or "_"


def shortened(text: str, length: int) -> str:
    """`text`, or its beginning with the number of characters that it had."""
    if len(text) <= length:
        return text
    note = f"… ({len(text)} characters)"
    return text[: length - len(note)] + note


def note_tags(tags: Mapping[str, str], text: str) -> dict[str, str]:
    """Tags that make `text` the note of something with these tags; none where the user has written one."""
    now = tags.get(NOTE, "")
    if now and _digest(now) != tags.get(TAG_NOTE):
        return {}
    return {NOTE: text, TAG_NOTE: _digest(text)}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _short(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else _text(value)
    return shortened(text.rsplit("/", 1)[-1], 40)
