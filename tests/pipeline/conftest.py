"""Copies of the project for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.pipeline.project import QUICK, Project, copy_project


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """One short-running copy a test file, in a folder with a space and an accent, with its first run done."""
    copy = copy_project(tmp_path_factory.mktemp("copia") / "mi árbol", **QUICK)
    copy.run("dvc", "repro")
    copy.commit("first run")
    return copy


@pytest.fixture
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Project]:
    """Makes copies in which nothing has run."""
    return lambda **params: copy_project(tmp_path_factory.mktemp("copia") / "mi árbol", **(QUICK | params))
