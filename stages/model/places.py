"""Where the files of a model are: in a folder of ours, or in one that MLflow saved."""

from __future__ import annotations

from pathlib import Path

from stages import paths


def model_files(folder: Path) -> tuple[Path, Path]:
    """The folder of the weights, and the vocabulary: in the same folder, else in `vocab` beside it, else data/vocab.

    Nothing is read, so that either may be missing, or the vocabulary another model's; `Predictor.load` says so.
    """
    if (folder / "MLmodel").exists():  # one that MLflow has saved
        folder = folder / "artifacts/model"
    places = [folder / "vocab.json", folder.parent / "vocab/vocab.json", paths.VOCAB / "vocab.json"]
    return folder, next((place for place in places if place.exists()), places[-1])
