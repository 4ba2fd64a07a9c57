"""Logging the trained language model: once a run, as code and safetensors."""

from __future__ import annotations

import ast
import shutil
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

from stages import paths
from stages.tracking import outbox
from stages.tracking.replay import Replay

if TYPE_CHECKING:
    from mlflow.entities import LoggedModel

NAME = "noam-lm"
_ENTRY = "stages.model.predict"
_REQUIREMENTS = (
    "mlflow",
    "torch",
    "safetensors",
    "pydantic",
    "pyyaml",
    "numpy",
    "regex",
    "tokenizers",
    "threadpoolctl",
)
_EXAMPLE = (["el perro"], {"top_k": 5})


def log_model(replay: Replay, folder: Path, fingerprint: str, updates: int) -> None:
    """Make sure that the run has exactly one model, whole, whatever a killed sync has left."""
    from mlflow.entities import LoggedModelOutput, LoggedModelStatus

    client = replay.store.client
    model = _existing(replay) or client.create_logged_model(
        replay.store.experiment_id,
        name=NAME,
        source_run_id=replay.run_id,
        tags={"noam.fingerprint": fingerprint},
        params=replay.run.data.params,
        model_type="language-model",
    )
    if model.status == LoggedModelStatus.READY:
        return
    run = client.get_run(replay.run_id)
    outputs = run.outputs.model_outputs if run.outputs else []
    if model.model_id not in [output.model_id for output in outputs]:
        client.log_outputs(replay.run_id, [LoggedModelOutput(model.model_id, step=updates)])
    with tempfile.TemporaryDirectory(prefix="noam-") as temporary:
        built = build_model(folder, Path(temporary), model, replay.run_id)
        replay.progress("model built")
        client.log_model_artifacts(model.model_id, str(built))
    client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    replay.progress("model")


def build_model(folder: Path, temporary: Path, model: LoggedModel, run_id: str) -> Path:
    """The folder of an MLflow model of the results in `folder`."""
    import mlflow
    from mlflow.models import Model

    weights = temporary / "model"
    shutil.copytree(folder / paths.MODEL, weights, ignore=shutil.ignore_patterns("replicas", "snapshots"))
    shutil.copy(folder / paths.VOCAB / "vocab.json", weights)
    code = temporary / "stages"
    code_root = folder if (folder / outbox.CODE / "model").is_dir() else _own_root()
    for file in needed_code(code_root):
        target = temporary / file.relative_to(code_root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    mlflow.pyfunc.save_model(
        path=str(temporary / "built"),
        python_model=str(code_root / "stages/tracking/pyfunc_model.py"),
        artifacts={"model": str(weights)},
        code_paths=[str(code)],
        pip_requirements=[f"{name}=={version(name).partition('+')[0]}" for name in _REQUIREMENTS],
        input_example=_EXAMPLE,
        mlflow_model=Model(
            artifact_path=model.artifact_location, model_uuid=model.model_id, model_id=model.model_id, run_id=run_id
        ),
    )
    for cache in (temporary / "built").rglob("__pycache__"):
        shutil.rmtree(cache)
    return temporary / "built"


def needed_code(root: Path) -> list[Path]:
    """The files of the package `stages` that predicting imports, directly or not."""
    found: dict[Path, None] = {}
    waiting = [_ENTRY]
    while waiting:
        name = waiting.pop()
        for file in _files_of(root, name):
            if file not in found:
                found[file] = None
                waiting += _imports(file)
    return sorted(found)


def _files_of(root: Path, module: str) -> list[Path]:
    """The file of a module, and the `__init__.py` of each package above it; nothing if it is not ours."""
    parts = module.split(".")
    here = root.joinpath(*parts)
    candidates = [root.joinpath(*parts[:i], "__init__.py") for i in range(1, len(parts) + 1)]
    return [file for file in [*candidates, here.with_suffix(".py")] if file.is_file()]


def _imports(file: Path) -> list[str]:
    names = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return [name for name in names if name.partition(".")[0] == "stages"]


def _existing(replay: Replay) -> LoggedModel | None:
    """The model that this run has already, finished or not."""
    found: list[LoggedModel] = replay.store.client.search_logged_models(
        [replay.store.experiment_id], filter_string=f"source_run_id = '{replay.run_id}'"
    )
    return found[0] if found else None


def _own_root() -> Path:
    return Path(__file__).resolve().parents[2]
