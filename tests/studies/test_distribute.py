"""What becomes of variants on other machines: tries, results that differ, what is refused at once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stages import files
from stages.errors import StudyError
from stages.params import Params
from stages.studies import done, whole
from stages.studies.distribute import _Judge, _Sending
from stages.studies.engines.base import Event
from stages.studies.engines.slurm import options_of
from stages.studies.jobs import Account
from stages.studies.messages import Result, Work
from stages.studies.plan import Variant
from stages.studies.remote import versions
from stages.studies.sharing import Remotes
from tests.conftest import Lab
from tests.pipeline.project import Project
from tests.studies import small
from tests.studies.conftest import Copies
from tests.studies.running import noam

VARIANT = Variant("one", {"variant": "one"}, Params())  # type: ignore[call-arg]


def result(host: str, digest: str, **changes: Any) -> Result:
    spot = {"digest": digest, "processor": "a processor", "kernels": "AVX2"}
    return Result("k", "c", host=host, spot=spot, **({"versions": versions()} | changes))


@pytest.fixture
def judge() -> tuple[_Judge, list[str]]:
    said: list[str] = []
    made = _Judge(said.append)
    made._here["portable"] = {"digest": "aaaa"}
    return made, said


def test_a_machine_that_computes_as_this_one_is_not_strange(judge: tuple[_Judge, list[str]]) -> None:
    made, said = judge
    assert made.strange(VARIANT, result("host", "aaaa")) == ""
    assert said == []


def test_one_that_computes_otherwise_is_named_once_and_its_results_each(judge: tuple[_Judge, list[str]]) -> None:
    made, said = judge
    notes = [made.strange(VARIANT, result("host", "bbbb")) for _ in range(2)]
    assert (
        notes[0]
        == notes[1]
        == ("made on host (a processor, AVX2), which computes otherwise (bbbb, but aaaa on this machine)")
    )
    assert len(said) == 1
    assert "computes otherwise with numerics portable: digest bbbb" in said[0]
    assert made.strange(VARIANT, result("third", "cccc")).endswith("(cccc, but aaaa on this machine, bbbb on host)")


def test_other_versions_are_reported(judge: tuple[_Judge, list[str]]) -> None:
    made, said = judge
    note = made.strange(VARIANT, result("host", "aaaa", versions=versions() | {"torch": "1.0"}))
    assert note.startswith("made on host with torch 1.0 (here ")
    assert len(said) == 1


def test_the_spot_check_is_the_same_in_each_process_and_tells_numerics_apart() -> None:
    found = {
        mode: {
            subprocess.run(
                [sys.executable, "-m", "stages.studies.spot", mode], capture_output=True, text=True, check=True
            ).stdout
            for _ in range(2)
        }
        for mode in ("portable", "native")
    }
    assert [len(one) for one in found.values()] == [1, 1]
    assert found["portable"] != found["native"]


def test_options_of_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOAM_SLURM", "partition=gpu,time=10")
    assert options_of(["cpus=4, time=20", "mem=8GB"]) == {
        "partition": "gpu",
        "time": 20,
        "cpus_per_task": 4,
        "mem": "8GB",
    }
    with pytest.raises(StudyError, match="--slurm 'time': expected KEY=VALUE"):
        options_of(["time"])


@pytest.mark.parametrize("place", ["dask", "dask://host", "ssh://host:1", ""])
def test_no_such_place(place: str, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="expected local, slurm, dask://HOST:PORT or tls://HOST:PORT"):
        whole.run(small.plan(tmp_path), on=place, say=print)


# --- tries ------------------------------------------------------------------------------------------------------------


class Failing:
    """An engine all of whose machines end a variant like this."""

    name = "failing"

    def __init__(self, *events: Event) -> None:
        self._events = list(events)
        self.submitted = 0

    def submit(self, work: Work) -> None:
        self.submitted += 1

    def events(self) -> list[Event]:
        return [self._events.pop(0) if len(self._events) > 1 else self._events[0]]

    def close(self) -> None:
        """Nothing."""


def sending(engine: Failing, lab: Lab) -> tuple[Account, list[str]]:
    said: list[str] = []
    account = Account()
    work = Work("k", "one", "/hub", "0" * 40, "", b"", {}, {}, (), "store", {}, "portable")
    remotes = Remotes("origin", "/hub", "store", {}, ())
    _Sending(remotes, [10], account, said.append).run(engine, [(VARIANT, "one", work)])
    return account, said


def test_a_variant_is_tried_three_times_and_then_named(lab: Lab) -> None:
    engine = Failing(
        Event("k", "lost", why="worker a died"), Event("k", "ended", result=Result("k", problem="no space", host="b"))
    )
    account, said = sending(engine, lab)
    assert engine.submitted == 3
    assert account.failed == {"one": {"tried 3 times": "worker a died; b: no space"}}
    assert [line for line in said if "tried again" in line] == [
        "one failed and is tried again (2 of 3): worker a died",
        "one failed and is tried again (3 of 3): b: no space",
    ]
    assert said[-1] == "one failed: tried 3 times: worker a died; b: no space"
    assert done.failure(VARIANT, [10]) == account.failed["one"]
    assert done.sent(VARIANT, [10]) == ""


def test_one_that_had_not_begun_has_not_been_tried(lab: Lab) -> None:
    lost = Event("k", "lost", why="worker a died", began=False)
    engine = Failing(lost, lost, lost, lost, Event("k", "ended", result=Result("k", problem="no space", host="b")))
    assert sending(engine, lab)[0].failed == {"one": {"tried 3 times": "b: no space"}}
    assert engine.submitted == 7


def test_how_far_one_is_counts_while_somebody_waits_for_it(lab: Lab) -> None:
    done.record_sent(VARIANT, [10], "dask: runs on host")
    assert done.sent(VARIANT, [10]) == "dask: runs on host"
    (file,) = (lab.folder / ".runstate/studies/sent").glob("*.json")
    content = files.read_json(file)
    content["waiting"]["created"] -= 100
    files.write_json(file, content)
    assert done.sent(VARIANT, [10]) == ""


# --- what is refused at once, by the command --------------------------------------------------------------------------


def refused(project: Project, *options: str) -> str:
    ended = noam(project, "study", "run", "small.yaml", "--on", "dask://127.0.0.1:1", *options, check=False)
    assert ended.returncode == 1
    assert "Traceback" not in ended.stderr
    return ended.stderr


@pytest.mark.pipeline
def test_missing_remotes_are_named_with_the_commands_that_set_them(fresh: Copies, tmp_path: Path) -> None:
    project = fresh()
    assert "`git remote add origin URL` sets it" in refused(project)
    project.run("git", "init", "-q", "--bare", str(tmp_path / "hub.git"))
    project.run("git", "remote", "add", "origin", str(tmp_path / "hub.git"))
    assert "`dvc remote add -d NAME URL` sets it" in refused(project)
    project.run("dvc", "remote", "add", "-q", "-d", "--local", "store", str(tmp_path / "store"))
    project.run("dvc", "remote", "modify", "-q", "--local", "store", "password", "hidden", check=False)

    (project.root / "data/raw/own.txt").write_text("un texto\n" * 20, encoding="utf-8")
    content = small.CONTENT | {"factors": {"warmup": [10, 40]}, "baseline": {"warmup": 10}, "seeds": "10-11"}
    small.write(project.root, **content | {"base": {"corpus": "data/raw/own.txt"}})
    assert "data/raw/own.txt: other machines cannot get this text: `git add data/raw/own.txt`" in refused(project)

    project.run("git", "add", "data/raw/own.txt")
    assert "no scheduler of Dask answers there" in refused(project)
    head = project.run("git", "rev-parse", "HEAD").stdout.strip()
    assert project.run("git", "ls-remote", "origin").stdout == f"{head}\trefs/noam/base/{head}\n"


@pytest.mark.pipeline
def test_a_text_that_dvc_tracks_is_pushed_before(fresh: Copies, tmp_path: Path) -> None:
    project = fresh()
    project.run("git", "init", "-q", "--bare", str(tmp_path / "hub.git"))
    project.run("git", "remote", "add", "origin", str(tmp_path / "hub.git"))
    project.run("dvc", "remote", "add", "-q", "-d", "--local", "store", str(tmp_path / "store"))
    text = project.root / "data/raw/own.txt"
    text.write_text("un texto\n" * 20, encoding="utf-8")
    project.run("dvc", "add", "-q", "data/raw/own.txt")
    content = small.CONTENT | {"factors": {"warmup": [10, 40]}, "baseline": {"warmup": 10}, "seeds": "10-11"}
    small.write(project.root, **content | {"base": {"corpus": "data/raw/own.txt"}})
    assert "`git add data/raw/own.txt.dvc` keeps it" in refused(project)
    project.run("git", "add", "data/raw/own.txt.dvc")
    assert "no scheduler of Dask answers there" in refused(project)
    assert [path.read_bytes() for path in (tmp_path / "store").rglob("*") if path.is_file()] == [text.read_bytes()]
    text.write_text("otro\n" * 20, encoding="utf-8")
    assert "differs from what data/raw/own.txt.dvc says; `dvc add data/raw/own.txt` renews that" in refused(project)
