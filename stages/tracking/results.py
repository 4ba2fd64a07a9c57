"""The results of an execution, as MLflow shows them: metrics, dataset, figures, tables, files and the model.

Everything has a name of its own that does not depend on when it is sent, so that sending it again changes nothing.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from stages import files, paths
from stages.params import read_params_file
from stages.tracking.fingerprint import corpus_digest
from stages.tracking.model import log_model
from stages.tracking.names import COUNTED, SUMMARISED, SUMMARY, TAG_ROLE
from stages.tracking.replay import Replay
from stages.tracking.runs import Runs
from stages.tracking.store import TAG_COMPLETE

if TYPE_CHECKING:
    from mlflow.entities import Metric

NEXT_WORDS, NEXT_WORDS_RANKED = "next_words.json", "next_words_ranked.json"
TABLES = (NEXT_WORDS, NEXT_WORDS_RANKED)
_REPORTS = (
    paths.REPORT,
    paths.METRICS,
    paths.REPLICAS,
    paths.HISTORY,
    paths.VALIDATION,
    paths.CORPUS_REPORT,
)
_MEASURED = (*paths.SPLITS, "truth")
_IMAGES = 120  # more would make the page of a run useless; all figures are among the artifacts
_IMAGE_SIDE = 640
_NAMESPACE = uuid.UUID("6f2d8f0e-6f4e-4a07-9c55-0d7a4f3c9a11")


def send_results(runs: Runs, folder: Path, fingerprint: str) -> None:
    """Send the results in `folder`, laid out like a workspace. Marks a run as complete when it has all of its part.

    Of several replicas the run of each gets its losses and records, and the summary all the rest.
    """
    own = runs.own
    updates, when = _end_of_training(own, folder)
    for replica in runs.replicas:
        if replica.tags.get(TAG_COMPLETE) != "yes":
            _send_replica(replica, folder, when)
    if own.tags.get(TAG_COMPLETE) == "yes":
        return
    metrics = files.read_json(folder / paths.METRICS)
    sums_up = own.tags.get(TAG_ROLE) == SUMMARY
    sent = _summary(metrics, when) if sums_up else _final(metrics, when)
    own.store.client.log_batch(own.run_id, metrics=list(sent))
    _log_dataset(own, folder)
    own.progress("dataset")
    with tempfile.TemporaryDirectory(prefix="noam-") as temporary:
        stage = Path(temporary)
        _lay_out(folder, stage, when)
        _send_files(own, stage)
        if (stage / NEXT_WORDS).is_file():
            own.tag("mlflow.loggedArtifacts", json.dumps([{"path": name, "type": "table"} for name in TABLES]))
        if (stage / "images").is_dir():
            own.tag("mlflow.loggedImages", "True")
    log_model(own, folder, fingerprint, updates)
    own.tag(TAG_COMPLETE, "yes")


def _send_replica(replica: Replay, folder: Path, when: int) -> None:
    """What is one replica's own among the results: its losses, and the records of all updates."""
    seed = replica.execution.record.seed
    listed: list[dict[str, Any]] = files.read_json(folder / paths.REPLICAS)
    measured = next((one for one in listed if one["seed"] == seed), {})
    replica.store.client.log_batch(replica.run_id, metrics=list(_final(measured, when)))
    _log_dataset(replica, folder)
    with tempfile.TemporaryDirectory(prefix="noam-") as temporary:
        report = Path(temporary) / "report"
        report.mkdir()
        for name in (paths.HISTORY.name, paths.VALIDATION.name):
            source = folder / paths.MODEL / "replicas" / str(seed) / name
            if source.is_file():
                shutil.copy(source, report)
        _send_files(replica, Path(temporary))
    replica.tag(TAG_COMPLETE, "yes")


def _send_files(replay: Replay, stage: Path) -> None:
    for part in sorted(stage.iterdir()):
        if part.is_dir():
            replay.store.client.log_artifacts(replay.run_id, str(part), part.name)
        else:
            replay.store.client.log_artifact(replay.run_id, str(part))
        replay.progress(part.name)


def _end_of_training(replay: Replay, folder: Path) -> tuple[int, int]:
    """The number of updates, and a time in milliseconds that is the same on every replay."""
    updates = int(files.read_json(folder / paths.MODEL / "config.json")["updates"])
    times = [event["t"] for event in replay.execution.events() if event["event"] == "trained"]
    return updates, times[-1] if times else replay.execution.record.started + updates


def _final(metrics: dict[str, Any], when: int) -> Iterator[Metric]:
    """The measures of each split as `final/<split>_<measure>`: one number a run, which the UI draws as bars (step 0).

    `truth` counts as a split: sentences drawn anew from the grammar of the corpus. What is not finite is null in the
    file, and left out here; so are the intervals and the losses of counting, which the report has.
    """
    for split in _MEASURED:
        for measure, value in metrics.get(split, {}).items():
            yield from _metric(f"final/{split}_{measure}", value, when)


def _summary(metrics: dict[str, Any], when: int) -> Iterator[Metric]:
    """Means over the replicas and the spread of the loss as `summary/<split>_<measure>`.

    Names of their own, so that means over the runs of replicas do not count their mean once more.
    """
    for count in COUNTED:
        yield from _metric(f"summary/{count}", metrics.get(count), when)
    for split in _MEASURED:
        for measure in SUMMARISED:
            yield from _metric(f"summary/{split}_{measure}", metrics.get(split, {}).get(measure), when)


def _metric(key: str, value: Any, when: int) -> Iterator[Metric]:
    from mlflow.entities import Metric

    if isinstance(value, int | float) and not isinstance(value, bool):
        yield Metric(key, float(value), when, 0)


def _log_dataset(replay: Replay, folder: Path) -> None:
    """The corpus, known by the MD5 that DVC knows it by."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    corpus = str(read_params_file(folder / paths.PARAMS)["corpus"])
    digest = corpus_digest((folder / paths.LOCK).read_text(encoding="utf-8"), corpus)
    if digest is None:
        return
    dataset = Dataset(
        name=Path(corpus).name[:500],
        digest=digest,
        source_type="local",
        source=json.dumps({"uri": corpus}, ensure_ascii=False),
        profile=_profile(folder),
    )
    tags = [InputTag("mlflow.data.context", "training")]
    replay.store.client.log_inputs(replay.run_id, datasets=[DatasetInput(dataset, tags)])


def _profile(folder: Path) -> str | None:
    """The account of what was read."""
    report = folder / paths.CORPUS_REPORT
    return report.read_text(encoding="utf-8") if report.is_file() else None


def _lay_out(folder: Path, stage: Path, when: int) -> None:
    """The artifacts of the run, as files under `stage`."""
    shutil.copy(folder / paths.PARAMS, stage / paths.PARAMS.name)
    files.write_text(stage / paths.LOCK.name, _lock((folder / paths.LOCK).read_text(encoding="utf-8")))
    (stage / "report").mkdir()
    for path in _REPORTS:
        if (folder / path).is_file():
            shutil.copy(folder / path, stage / "report" / path.name)
    figures = folder / paths.FIGURES
    if figures.is_dir():
        shutil.copytree(figures, stage / "figures", ignore=shutil.ignore_patterns("*.tmp"))
        _images(figures, stage, when)
    tables = folder / paths.EVALUATION / "next_words.json"
    if tables.is_file():
        for name, table in _tables(files.read_json(tables)).items():
            files.write_json(stage / name, table)


def _lock(text: str) -> str:
    """dvc.lock without the stage `track`: while that one runs, DVC still has there what an earlier run has written."""
    lock = yaml.safe_load(text)
    lock["stages"].pop("track", None)
    return str(yaml.safe_dump(lock, sort_keys=False))


def _tables(prompts: list[dict[str, Any]]) -> dict[str, Any]:
    """The next words of all prompts as tables that MLflow's page compares between runs.

    It puts rows with the same first column side by side and shows their second column: so the first table has a row a
    prompt, and the second one all ranks.
    """
    summaries, ranked = [], []
    for entry in prompts:
        words = [(word["word"], word["probability"]) for word in entry["next"]]
        name = " ".join(entry["tokens"])
        shown = [f"{word} {'–' if share is None else f'{share:.3f}'}" for word, share in words[:10]]
        summaries.append([name, " · ".join(shown)])
        ranked += [[f"{name} {rank}", word, name, rank, share] for rank, (word, share) in enumerate(words, start=1)]
    return {
        NEXT_WORDS: {"columns": ["prompt", "next words"], "data": summaries},
        NEXT_WORDS_RANKED: {"columns": ["place", "word", "prompt", "rank", "probability"], "data": ranked},
    }


def _images(figures: Path, stage: Path, when: int) -> None:
    """Attention and next words as MLflow's images, side by side for several runs in its image grid."""
    target = stage / "images"
    pictures = [*sorted(figures.rglob("*attention*.png")), *sorted(figures.rglob("*next-words*.png"))]
    for figure in pictures[:_IMAGES]:
        target.mkdir(exist_ok=True)
        key, step = image_key(figure.relative_to(figures))
        base = f"{key.replace('/', '~')}+step+{step}+timestamp+{when}+{uuid.uuid5(_NAMESPACE, f'{key} {step}')}"
        shutil.copy(figure, target / f"{base}.png")
        (target / f"{base}+compressed.webp").write_bytes(_thumbnail(figure))


def image_key(figure: Path) -> tuple[str, int]:
    """The name under which the UI lists a figure, and its step.

    attention-p1-L0H2.png → `attention/p1-L0H2`; step300-attention-p1.png → step 300 of `attention/p1-on-the-way`.
    """
    stem = re.sub(r"[^a-zA-Z0-9_\-. ]", "-", figure.stem)
    on_the_way = re.fullmatch(r"step(\d+)-(.+)", stem)
    step = int(on_the_way[1]) if on_the_way else 0
    stem = f"{on_the_way[2]}-on-the-way" if on_the_way else stem
    return re.sub(r"^(attention|next-words)-", r"\1/", stem), step


def _thumbnail(figure: Path) -> bytes:
    """The small WebP picture that the grid shows, without anything that changes from day to day."""
    from PIL import Image

    with Image.open(figure) as image:
        small = image.convert("RGB")
        small.thumbnail((_IMAGE_SIDE, _IMAGE_SIDE))
        content = io.BytesIO()
        small.save(content, "WEBP", quality=85)
        return content.getvalue()
