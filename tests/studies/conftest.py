"""A project in which a small study has been run, and copies of it in which nothing has."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.project import Project, copy_project
from tests.studies import small
from tests.studies.running import BASE, noam, overrides

Copies = Callable[[], Project]


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project in a folder with a space, with the study file committed; only to be copied."""
    project = copy_project(tmp_path_factory.mktemp("pristine") / "my tree")
    small.write(project.root, base=BASE, factors={"warmup": [10, 40]}, seeds="10-11", baseline={"warmup": 10})
    project.commit("a study")
    return project


@pytest.fixture(scope="session")
def fresh(pristine: Project, tmp_path_factory: pytest.TempPathFactory) -> Copies:
    """Makes copies in which nothing has run."""

    def make() -> Project:
        folder = tmp_path_factory.mktemp("fresh") / "my tree"
        shutil.copytree(pristine.root, folder, symlinks=True)
        return Project(folder)

    return make


@pytest.fixture(scope="session")
def studied(fresh: Copies) -> Project:
    """The study has been run, by its command; only to be copied or read."""
    project = fresh()
    done = noam(project, "study", "run", "small.yaml")
    (project.root / "first.txt").write_text(done.stdout, encoding="utf-8")
    return project


@pytest.fixture(scope="session")
def by_hand(fresh: Copies) -> Project:
    """The same as one of the variants, typed by somebody."""
    project = fresh()
    project.run("dvc", "exp", "run", "-n", "typed", *overrides(**BASE, warmup=10, seed=10, replicas=2))
    return project


@pytest.fixture
def again(studied: Project, tmp_path: Path) -> Project:
    """A copy of it to be changed, in the same place as seen from within."""
    shutil.copytree(studied.root, tmp_path / "my tree", symlinks=True)
    return Project(tmp_path / "my tree")
