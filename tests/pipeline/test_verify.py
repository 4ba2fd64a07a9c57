"""`noam verify`: the committed state run anew in a fresh clone, compared output by output."""

from __future__ import annotations

import pytest

from tests.pipeline.project import Project

pytestmark = pytest.mark.pipeline


def test_the_committed_outputs_are_made_again(project: Project) -> None:
    project.run("git", "status", "--short")
    done = project.run("noam", "verify")
    outputs = {
        path: md5
        for stage in ("prepare", "vocab", "train", "evaluate", "plots")
        for path, md5 in project.outputs(stage).items()
    }
    assert all(f"same     {md5}  {path}\n" in done.stdout for path, md5 in outputs.items())
    assert f"all {len(outputs)} outputs have the same bytes" in done.stdout


def test_the_first_output_that_differs_is_named(project: Project) -> None:
    lock = project.root / "dvc.lock"
    before = lock.read_text(encoding="utf-8")
    model = project.outputs("train")["data/model"]
    lock.write_text(before.replace(model, "0" * 32 + ".dir"), encoding="utf-8")
    project.commit("a lock that is wrong")
    done = project.run("noam", "verify", check=False)
    assert done.returncode == 1
    assert "error: the first output that differs is data/model" in done.stderr
    assert "same " in done.stdout
    assert "Traceback" not in done.stderr


def test_without_a_committed_lock_there_is_nothing_to_compare(project: Project) -> None:
    project.run("git", "rm", "-q", "--cached", "dvc.lock")
    project.run("git", "commit", "-qm", "no lock")
    done = project.run("noam", "verify", check=False)
    assert done.returncode == 1
    assert "dvc.lock: not committed" in done.stderr
