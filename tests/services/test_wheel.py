"""The wheel: what is in it, that a commit gives the same bytes, and that it runs where there is no repository."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from tests.pipeline.project import Project, clean_environment, copy_project

pytestmark = pytest.mark.services


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return copy_project(tmp_path_factory.mktemp("wheel") / "my tree")


@pytest.fixture(scope="module")
def wheel(project: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    project.run(".ci/wheel", str(folder))
    (found,) = folder.iterdir()
    return found


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of a fresh environment with the wheel, which has the packages that it needs from this one's."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    site = folder / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(folder / "bin/python")]
    command += ["install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    others = [path for path in sys.path if path.endswith("site-packages")]
    (site / "others.pth").write_text("\n".join(others) + "\n", encoding="utf-8")
    return folder / "bin"


def run(folder: Path, *command: str | Path) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in clean_environment().items() if name != "PYTHONPATH"}
    return subprocess.run(
        list(map(os.fspath, command)),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


def test_it_has_the_package_with_its_data_and_nothing_else(project: Project, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as content:
        names = content.namelist()
    own = [name for name in names if ".dist-info/" not in name]
    listed = project.run("git", "ls-files", "stages").stdout.split()
    assert sorted(own) == sorted(listed)
    assert {Path(name).suffix for name in own} == {".py", ".json", ".j2"}
    assert [name for name in names if "egg-info" in name or name.startswith("tests")] == []


def test_a_commit_gives_the_same_bytes_whatever_lies_around(project: Project, wheel: Path, tmp_path: Path) -> None:
    (project.root / "stages/left_over.py").write_text("x = 1\n", encoding="utf-8")
    command = 'umask 077; export TZ=Asia/Tokyo LC_ALL=C.UTF-8; exec .ci/wheel "$0"'
    done = project.run("sh", "-c", command, str(tmp_path))
    (project.root / "stages/left_over.py").unlink()
    assert done.stderr == "note: what is not committed is not in the wheel\n"
    assert (tmp_path / wheel.name).read_bytes() == wheel.read_bytes()


def test_it_runs_where_there_is_no_repository(project: Project, installed: Path, tmp_path: Path) -> None:
    where = run(tmp_path, installed / "python", "-c", "import stages; print(stages.__file__)").stdout
    assert Path(where).is_relative_to(installed.parent)  # and not the source folder
    done = run(tmp_path, installed / "noam", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "predict" in done.stdout
    done = run(tmp_path, installed / "noam", "summary")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "clone a project's repository" in done.stderr
    script = (
        "import torch; from stages.optim.noam import NoamOptimizer; "
        "layer = torch.nn.Linear(2, 1); optimizer = NoamOptimizer(layer.parameters(), 16, decay=0); "
        "before = layer.weight.clone(); layer(torch.ones(2)).sum().backward(); optimizer.step(); "
        "print(bool((layer.weight != before).all()))"
    )
    done = run(tmp_path, installed / "python", "-c", script)
    assert (done.stdout, done.stderr) == ("True\n", "")


def test_every_module_of_it_can_be_imported(installed: Path, tmp_path: Path) -> None:
    script = """
import importlib, pkgutil, stages
names = [found.name for found in pkgutil.walk_packages(stages.__path__, "stages.")]
for name in names:
    if name != "stages.tracking.pyfunc_model":  # which MLflow alone can run
        importlib.import_module(name)
print(len(names))
"""
    done = run(tmp_path, installed / "python", "-c", script)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100
    assert list(tmp_path.iterdir()) == []
