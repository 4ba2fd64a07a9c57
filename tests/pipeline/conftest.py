"""Copies of the project for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.pipeline.project import QUICK, Project, copy_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """One short-running copy a test file, in a folder with a space, with its first run done.

    (No accent: DVC 3.67 cannot write such a path into the configuration of a temporary experiment.)
    """
    copy = copy_project(tmp_path_factory.mktemp("copia") / "my tree", **QUICK)
    copy.run("dvc", "repro")
    copy.commit("first run")
    return copy


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Project]:
    """Makes copies in which nothing has run."""
    return lambda **params: copy_project(tmp_path_factory.mktemp("copia") / "my tree", **(QUICK | params))
