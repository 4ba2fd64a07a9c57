"""Runs in MLflow's store as tables of a comparison: one row a run with a seed of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stages.errors import StudyError, TrackingError
from stages.studies.by_hand import Made
from stages.studies.collect import Tables, steps_to
from stages.tracking.names import SUMMARY, TAG_DIVERGED_AT, TAG_GROUP, TAG_ROLE
from stages.tracking.store import TAG_EXECUTION, Store, connect, tracking_errors

if TYPE_CHECKING:
    from mlflow.entities import Run


class StoredRuns:
    """The runs of this project in the store.

    Args:
        ids: of runs; a summary stands for its replicas. () for all that are finished.

    Raises:
        TrackingError: the store cannot be reached, or has no run of an id.
    """

    def __init__(self, ids: Sequence[str] = ()) -> None:
        self._store = connect(timeout=20)
        with tracking_errors(self._store.uri):
            there = [run for run in self._store.runs() if run.info.lifecycle_stage != "deleted"]
        by_id = {run.info.run_id: run for run in there}
        missing = [identity for identity in ids if identity not in by_id]
        if missing:
            raise TrackingError(f"{self._store.uri}: no run {missing[0]}")
        groups = {by_id[identity].data.tags.get(TAG_GROUP) for identity in ids if _sums_up(by_id[identity])}
        wanted = [
            run for run in there if not ids or run.info.run_id in ids or run.data.tags.get(TAG_GROUP) in groups - {None}
        ]
        self._runs: dict[str, Run] = {run.info.run_id: run for run in wanted if _counts(run)}

    def made(self) -> list[Made]:
        """Each run with its parameters."""
        return [Made(str(run.info.run_name), dict(run.data.params), identity) for identity, run in self._runs.items()]

    def tables(self, made: Made, variant: str, levels: dict[str, str], metric: str, target: float | None) -> Tables:
        """The tables of one run.

        Raises:
            StudyError: it has no such metric.
        """
        run = self._runs[made.origin]
        section, _, name = metric.partition(".")
        diverged = run.data.tags.get(TAG_DIVERGED_AT)
        value = run.data.metrics.get(f"final/{section}_{name}")
        if value is None and diverged is None:
            raise StudyError("metric", f"{metric}: run {made.name} has no final/{section}_{name}")
        with tracking_errors(self._store.uri):
            curve, seconds = _curve(self._store, run)
            rates = self._store.client.get_metric_history(made.origin, "optim/lr")
        seed = int(run.data.tags.get("seed", run.data.params.get("seed", 0)))
        reached = steps_to(target, curve.items())
        row: dict[str, Any] = {
            "variant": variant,
            "seed": seed,
            **levels,
            "value": None if diverged else value,
            "start": curve.get(0) if name == "loss" else None,
            "diverged_at": float(diverged) if diverged and diverged.isdigit() else None,
            "steps_to_target": reached,
            "seconds_to_target": seconds.get(reached) if reached is not None else None,
        }
        return Tables.of(
            [row],
            [{"variant": variant, "seed": seed, "step": step, "loss": loss} for step, loss in curve.items()],
            [{"variant": variant, "step": point.step, "lr": point.value} for point in rates],
        )


def _curve(store: Store, run: Run) -> tuple[dict[int, float], dict[int, float]]:
    """Measured losses by step, and the seconds since the first of them."""
    names = [name for name in ("eval/valid_loss", "eval/train_loss") if name in run.data.metrics]
    points = store.client.get_metric_history(run.info.run_id, names[0]) if names else []
    points = sorted(points, key=lambda point: (point.step, point.timestamp))
    first = points[0].timestamp if points else 0
    return {point.step: point.value for point in points}, {
        point.step: (point.timestamp - first) / 1000 for point in points
    }


def _sums_up(run: Run) -> bool:
    return run.data.tags.get(TAG_ROLE) == SUMMARY


def _counts(run: Run) -> bool:
    """A run of this pipeline that has an end, with a seed of its own."""
    return TAG_EXECUTION in run.data.tags and not _sums_up(run) and run.info.status == "FINISHED"
