"""What MLflow is told of an execution: names, parameters and tags within its limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from stages.execution import ExecutionRecord
from stages.params import Params
from stages.tracking.store import TAG_EXECUTION

_PARAM_LENGTH = 6000
_KEY_LENGTH = 250
_SEPARATOR = " · "
_ALLOWED = set("_-. :")


def run_name(record: ExecutionRecord) -> str:
    """The factors of a run: warm-up, seed, whatever differs from its default, and DVC's name of the experiment."""
    params = record.params
    changed = [
        key
        for key, about in Params.model_fields.items()
        if key in params and key not in ("warmup", "seed") and params[key] != about.default
    ]
    factors = [f"{key}={_short(params[key])}" for key in ["warmup", "seed", *changed] if key in params]
    name = _SEPARATOR.join([*factors, *([record.experiment] if record.experiment else [])])
    return shortened(name, _KEY_LENGTH)


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


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _short(value: Any) -> str:
    text = f"{value:g}" if isinstance(value, float) else _text(value)
    return shortened(text.rsplit("/", 1)[-1], 40)
