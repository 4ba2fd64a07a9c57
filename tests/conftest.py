"""What the tests share: a copy of the project to run stages in, and small models."""

from __future__ import annotations

import stages.numerics  # noqa: F401  # isort: skip (before NumPy)
import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml
from hypothesis import settings

from stages import files
from stages.cli import main
from stages.model.language_model import LanguageModel, LanguageModelConfig, initialise

Answer = tuple[int, str, str]  # of `noam`: the exit code, and what it wrote on both channels

ROOT = Path(__file__).resolve().parents[1]
SMALL = {"d_model": 16, "hidden": 16, "n_heads": 2, "epochs": 3, "warmup": 10, "eval_every": 1}

torch.set_num_threads(1)
# The same examples each time, however slow the machine; `--hypothesis-profile=default` looks for new ones.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")


@pytest.fixture(autouse=True)
def subnormal_numbers() -> Iterator[None]:
    """Stages that run inside the tests' process count them as zero, which Hypothesis refuses to work with."""
    yield
    torch.set_flush_denormal(False)


class Lab:
    """A copy of the project in a temporary folder, which is the current folder of the test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("params.yaml", "dvc.yaml", "grammar"):
            shutil.copy(ROOT / name, folder)
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / "stages", folder / "stages", ignore=ignore)
        shutil.copytree(ROOT / "data" / "raw", folder / "data" / "raw", ignore=ignore)

    def set(self, **values: Any) -> None:
        """Write values into params.yaml."""
        path = self.folder / "params.yaml"
        content = yaml.safe_load(path.read_text(encoding="utf-8")) | values
        path.write_text(yaml.safe_dump(content, allow_unicode=True, sort_keys=False), encoding="utf-8")

    def corpus(self, content: str | bytes) -> None:
        """Write the text that params.yaml names."""
        raw = content.encode("utf-8") if isinstance(content, str) else content
        (self.folder / "data/raw/notebook.txt").write_bytes(raw)

    def run(self, *stages: str) -> None:
        """Run stages inside this process, with the code under test."""
        for name in stages:
            importlib.import_module(f"stages.{name}").main()

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`python -m …` here, with the code of the copy."""
        return subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )

    def read(self, name: str) -> Any:
        return files.read_json(self.folder / name)

    def bytes_of(self, *folders: str) -> dict[str, bytes]:
        """The content of all files below these folders, or of these files."""
        found = [path for name in folders for path in [self.folder / name, *(self.folder / name).rglob("*")]]
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in found if path.is_file()}


def _bare_environment(patch: pytest.MonkeyPatch) -> None:
    """No trace of a `dvc` above, and no follower."""
    for name in [name for name in os.environ if name.startswith("DVC_")]:
        patch.delenv(name)
    patch.delenv("NOAM_RUNSTATE", raising=False)
    patch.setenv("NOAM_LIVE", "off")


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A fresh copy of the project, with the default parameters."""
    _bare_environment(monkeypatch)
    monkeypatch.chdir(tmp_path)
    return Lab(tmp_path)


@pytest.fixture(scope="session")
def _trained(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("trained")
        _bare_environment(patch)
        patch.chdir(folder)
        lab = Lab(folder)
        lab.set(**SMALL)
        lab.run("prepare", "vocab", "train", "evaluate")
    return lab


@pytest.fixture
def trained(_trained: Lab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A copy in which a small model was trained and evaluated; shared by all tests, so only to be read."""
    _bare_environment(monkeypatch)
    monkeypatch.chdir(_trained.folder)
    return _trained


@pytest.fixture
def small_lab(lab: Lab) -> Lab:
    """A fresh copy of the project, with parameters for a small model."""
    lab.set(**SMALL)
    return lab


@pytest.fixture(scope="session")
def new_model() -> Callable[..., LanguageModel]:
    """Makes a small model from a seed, with any of its choices changed."""

    def make(seed: int = 0, **changes: Any) -> LanguageModel:
        choices = {
            "vocab_size": 20,
            "d_model": 12,
            "layers": 2,
            "n_heads": 3,
            "heads": "split",
            "hidden": 10,
            "block": "post",
            "positions": "paper",
            "activation": "relu",
            "tied_output": False,
        }
        model = LanguageModel(LanguageModelConfig.model_validate(choices | changes))
        initialise(model, torch.Generator().manual_seed(seed))
        return model

    return make


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared corpora and cases; tests that need it are skipped where it is not there."""
    folder = Path(os.environ.get("NOAM_SHARED", ROOT.parent / "shared"))
    if not folder.is_dir():
        pytest.skip("no folder of shared corpora (NOAM_SHARED, or ../shared)")
    return folder


@pytest.fixture
def noam(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Runs `noam …` in the current folder; gives the exit code, and what it wrote on both channels."""

    def run(*arguments: str) -> Answer:
        monkeypatch.setattr(sys, "argv", ["noam", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main()
        return (int(end.value.code or 0), *capsys.readouterr())

    return run


def script(name: str) -> ModuleType:
    """A Python script under `.ci`, as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where a dataclass looks for itself
    spec.loader.exec_module(module)
    return module
