"""Real services on loopback for the tests of this folder, and the workspaces of the tests of tracking."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tracking.conftest import NOISE, empty_database, results, store, workspace  # noqa: F401 (fixtures)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.services)
            for pattern in NOISE:
                item.add_marker(pytest.mark.filterwarnings(pattern))
