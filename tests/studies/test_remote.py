"""What one machine does for another: the clone, the checks before anything runs, and results that count once."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from stages.studies import remote, scratch
from stages.studies.messages import BASE, DONE, Result, Work
from stages.studies.workspace import ref_of


def git(folder: Path, *arguments: str) -> str:
    identity = {f"GIT_{role}_{key}": "test@x" for role in ("AUTHOR", "COMMITTER") for key in ("NAME", "EMAIL")}
    done = subprocess.run(
        ["git", *arguments], cwd=folder, env=os.environ | identity, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """A git remote with one commit."""
    git(tmp_path, "init", "-q", "-b", "main", "source")
    (tmp_path / "source/text.txt").write_text("one\n", encoding="utf-8")
    git(tmp_path / "source", "add", "-A")
    git(tmp_path / "source", "commit", "-qm", "start")
    git(tmp_path, "clone", "-q", "--bare", "source", "hub.git")
    return tmp_path / "hub.git"


@pytest.fixture
def work(hub: Path) -> Work:
    base = git(hub, "rev-parse", "main")
    return Work("a" * 24, "mine", str(hub), base, "", b"", {}, {}, (), "store", {}, "portable")


def clone_with_result(work: Work, folder: Path, content: str) -> Path:
    """A clone in which an experiment of that name was made."""
    git(folder.parent, "clone", "-q", work.url, str(folder))
    (folder / "result").write_text(content, encoding="utf-8")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", content)
    git(folder, "update-ref", ref_of(work.name, work.base), "HEAD")
    return folder


def refs(hub: Path) -> dict[str, str]:
    lines = git(hub, "for-each-ref", "--format=%(refname) %(objectname)", "refs/exps", "refs/noam").splitlines()
    return dict(line.split() for line in lines)


def test_of_two_machines_with_the_same_variant_the_first_one_counts(work: Work, hub: Path, tmp_path: Path) -> None:
    first = clone_with_result(work, tmp_path / "first", "first")
    second = clone_with_result(work, tmp_path / "second", "second")
    made = git(first, "rev-parse", "HEAD")
    assert remote._push(work, first) == (made, False)
    assert remote._push(work, second) == (made, True)
    assert refs(hub) == {f"{DONE}{work.key}": made, ref_of("mine", work.base): made}
    assert remote.perform(work, tmp_path) == Result(work.key, made, again=True)


def test_a_name_that_other_code_took_meanwhile_gets_the_digest(work: Work, hub: Path, tmp_path: Path) -> None:
    remote._push(replace(work, key="b" * 24), clone_with_result(work, tmp_path / "first", "first"))
    second = clone_with_result(work, tmp_path / "second", "second")
    made = git(second, "rev-parse", "HEAD")
    assert remote._push(work, second) == (made, False)
    assert refs(hub)[ref_of("mine-aaaaaaaa", work.base)] == made
    assert len(refs(hub)) == 4


def test_the_clone_has_the_commit_and_the_changes(work: Work, hub: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "text.txt").write_text("two\n", encoding="utf-8")
    (source / "new.bin").write_bytes(bytes(range(256)))
    git(source, "add", "new.bin")
    diff = subprocess.run(
        ["git", "diff", "--binary", "--full-index", "HEAD"], cwd=source, capture_output=True, check=True
    ).stdout
    git(source, "commit", "-qam", "later")
    later = git(source, "rev-parse", "HEAD")
    git(source, "push", "-q", str(hub), f"HEAD:{BASE}{later}")

    remote._make_clone(replace(work, diff=diff), tmp_path / "clone")
    assert (tmp_path / "clone/text.txt").read_text(encoding="utf-8") == "two\n"
    assert (tmp_path / "clone/new.bin").read_bytes() == bytes(range(256))
    assert git(tmp_path / "clone", "rev-parse", "HEAD") == work.base

    remote._make_clone(replace(work, base=later, base_ref=f"{BASE}{later}"), tmp_path / "later")
    assert git(tmp_path / "later", "rev-parse", "HEAD") == later


def test_another_text_than_that_of_whoever_asked_is_refused(work: Work, tmp_path: Path) -> None:
    remote._make_clone(work, tmp_path / "clone")
    with pytest.raises(remote.CorpusError, match=r"text\.txt: another one on"):
        remote._check_inputs(replace(work, inputs={"text.txt": "0" * 32}), tmp_path / "clone")
    with pytest.raises(remote.ArtifactError, match=r"stages/new\.py: not on"):
        remote._check_inputs(replace(work, inputs={"stages/new.py": "0" * 32}), tmp_path / "clone")


def test_what_fails_is_told_and_leaves_nothing(work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOAM_SCRATCH", str(tmp_path / "scratch"))
    result = remote.run_variant(replace(work, url=str(tmp_path / "nowhere.git")))
    assert result.commit == ""
    assert "ls-remote" in result.problem
    assert result.host == platform.node()
    assert result.versions.keys() == {"noam-lab", "torch", "dvc"}
    assert list((tmp_path / "scratch").iterdir()) == []


def test_folders_of_killed_processes_are_removed_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOAM_SCRATCH", str(tmp_path))
    script = """
import os, signal
from stages.studies import scratch
with scratch.folder():
    os.kill(os.getpid(), signal.SIGKILL)
"""
    killed = subprocess.run([sys.executable, "-c", script], check=False)
    assert killed.returncode == -signal.SIGKILL
    (dead,) = tmp_path.iterdir()
    elsewhere = tmp_path / dead.name.replace(f"@{platform.node()}@", "@another@")
    elsewhere.mkdir()
    (tmp_path / "noam-variant@mine").mkdir()
    with scratch.folder() as living:
        assert living.stat().st_mode & 0o777 == 0o700
        assert scratch.remove_leftovers() == 1
        assert sorted(tmp_path.iterdir()) == sorted([elsewhere, living, tmp_path / "noam-variant@mine"])
    assert not living.exists()


def test_everything_ends_with_the_process_that_asked(work: Work, tmp_path: Path) -> None:
    """Also what the work has started; and the folder is gone."""
    folder = tmp_path / "folder"
    folder.mkdir()
    script = f"""
import subprocess, sys, time
from stages.studies import remote
from pathlib import Path
watch = remote._Watch(int(sys.argv[1]), Path({str(folder)!r}))
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
watch.start()
time.sleep(60)
"""
    asking = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", sys.argv[1], str(os.getpid())], start_new_session=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", asking, script])
    below: list[psutil.Process] = []
    end = time.monotonic() + 30
    while len(below) < 2:
        below = psutil.Process(parent.pid).children(recursive=True)
        assert time.monotonic() < end
        time.sleep(0.05)
    time.sleep(0.5)
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs(below, timeout=15)
    assert [one for one in alive if one.status() != psutil.STATUS_ZOMBIE] == []
    assert not folder.exists()
