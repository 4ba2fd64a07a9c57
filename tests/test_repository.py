"""What git refuses is told by the line that says why."""

from __future__ import annotations

import pytest

from stages.errors import RepositoryError
from stages.repository import git
from tests.conftest import Lab


def test_a_remote_that_is_not_there_is_named(lab: Lab) -> None:
    git("init", "-q", folder=lab.folder)
    with pytest.raises(RepositoryError, match=r"git ls-remote: fatal: '/no/such\.git' does not appear to be a git"):
        git("ls-remote", "/no/such.git", folder=lab.folder)
