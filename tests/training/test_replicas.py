"""Several runs at once: each is what it would be alone, and what happens to one is no matter to the others.

Each test starts a process that starts the runs, since a process that has threads, such as one of tests, should not
fork.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from stages.execution import Execution
from stages.params import Params
from stages.training.kept import all_kept, checkpoints, key_of, step_of
from stages.training.runs import Outcome
from tests.conftest import Lab
from tests.training.tasks import content_of, environment, task

RUN: dict[str, Any] = {"checkpoint_every": 10, "epochs": 12, "batch_size": 2}  # 48 updates
LONG: dict[str, Any] = RUN | {"epochs": 3000, "checkpoint_every": 0}
WILD = {"optimizer": "sgd", "schedule": "none", "lr": 1e30}


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("DVC_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Group:
    """A process that trains these runs, so many at once, and what it has said."""

    def __init__(self, runs: list[dict[str, Any]], workers: int, **environ: str) -> None:
        self.runs = runs
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.training.group", json.dumps(runs), str(workers)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment() | environ,
            start_new_session=True,
        )
        self.lines: list[str] = []

    def read_until(self, pattern: str, times: int = 1) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.strip())
            times -= re.match(pattern, line) is not None
            if not times:
                return
        pytest.fail(f"never said {pattern}: {self.lines} {self.process.stderr and self.process.stderr.read()}")

    def end(self) -> tuple[int, str]:
        out, err = self.process.communicate(timeout=200)
        self.lines += out.splitlines()
        return self.process.returncode, err

    def said(self, kind: str) -> list[str]:
        return [line.removeprefix(f"{kind} ") for line in self.lines if line.split()[0] == kind]

    def began(self) -> dict[int, tuple[int, Execution]]:
        """Of each run that began, after how many updates, and its execution."""
        found = {}
        for line in self.said("began"):
            i, step, identity = line.split()
            execution = Execution.find(identity)
            assert execution is not None
            found[int(i)] = int(step), execution
        return found

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def folder(self, i: int) -> Path:
        return checkpoints() / key_of(task(**self.runs[i]).inputs)

    def outcomes(self, *only: int) -> list[tuple[Any, ...]]:
        return [
            content_of(Outcome.read(self.folder(i), task(**self.runs[i]).inputs)) for i in only or range(len(self.runs))
        ]


def run_group(runs: list[dict[str, Any]], workers: int, **environ: str) -> Group:
    group = Group(runs, workers, **environ)
    assert group.end() == (0, "")
    return group


def alone(runs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What each comes to by itself, one after the other in one process."""
    with monkeypatch.context() as patch:
        patch.setenv("DVC_ROOT", str(Path("alone").absolute()))
        return run_group(runs, 0).outcomes()


def events(execution: Execution) -> list[str]:
    """All that its journal has, whether or not it was resumed since."""
    return [entry["event"] for entry in execution.entries() if "event" in entry]


def wait_until_gone(processes: list[psutil.Process], seconds: float = 60) -> None:
    _, alive = psutil.wait_procs(processes, timeout=seconds)
    assert alive == []


# --- one and many -----------------------------------------------------------------------------------------------------


def test_neither_order_nor_number_of_workers_nor_company_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeds, tasks that differ in more, and one that diverges: each is byte for byte what it is alone."""
    changes: list[dict[str, Any]] = [{"seed": 0}, {"seed": 1}, {"seed": 1, "warmup": 30}, {"seed": 1, **WILD}]
    runs = [RUN | one for one in changes]
    expected = alone(runs, monkeypatch)
    assert len({str(one) for one in expected}) == 4
    assert [divergence is None for *_, divergence, _ in expected] == [True, True, True, False]
    order = [3, 1, 0, 2]
    group = run_group([runs[i] for i in order], 3)
    assert [Path(folder) for folder in group.said("outcome")] == [group.folder(k) for k in range(4)]
    assert group.outcomes() == [expected[i] for i in order]
    assert group.said("updates") == [str(3 * 48 + 1)]
    (line,) = group.said("diverged")
    assert line.startswith("0 diverged at update 2: ")
    assert len(group.began()) == 4
    for k, (step, execution) in group.began().items():
        assert step == 0
        assert events(execution) == ["diverged"] * (k == 0) + ["finished"]
        logged = [entry for entry in execution.entries() if "train/loss" in entry.get("m", {})]
        assert len(logged) == (1 if k == 0 else 48)

    again = run_group(group.runs, 2)  # all are over
    assert again.said("updates") == ["0"]
    assert again.outcomes() == group.outcomes()
    assert {k: step for k, (step, _) in again.began().items()} == {0: 1, 1: 48, 2: 48, 3: 48}
    for k, (_, execution) in again.began().items():
        assert execution.id == group.began()[k][1].id
        assert events(execution) == ["diverged"] * (k == 0) + ["finished"]


# --- trouble ----------------------------------------------------------------------------------------------------------


def test_one_that_is_killed_is_reported_and_alone_is_run_again() -> None:
    runs = [LONG | {"max_updates": 600}, RUN | {"seed": 1}, RUN | {"seed": 2}]
    group = Group(runs, 2)
    group.read_until("began 0 ")
    victim = group.began()[0][1]
    os.kill(victim.record.trainer.pid, signal.SIGKILL)
    code, err = group.end()
    assert code == 1
    assert group.said("failed") == ["0 killed by SIGKILL"]
    assert err == (
        "error: 1 of 3 replicas failed (seed 0: killed by SIGKILL); the other 2 are kept, start again to go on\n"
    )
    assert [step_of(group.folder(i)) for i in range(3)] == [0, 48, 48]
    assert [(event["event"], event["message"]) for event in victim.events()] == [("killed", "killed by SIGKILL")]
    kept = group.outcomes(1, 2)

    again = run_group(runs, 2)
    assert {i: step for i, (step, _) in again.began().items()} == {0: 0, 1: 48, 2: 48}
    assert again.said("updates") == ["600"]
    assert again.outcomes(1, 2) == kept


def test_one_that_fails_says_why() -> None:
    runs = [RUN, RUN | {"seed": 1}]
    folder = checkpoints() / key_of(task(**runs[0]).inputs)
    folder.mkdir(parents=True)
    (folder / "state.safetensors").write_bytes(b"nonsense")
    group = Group(runs, 2)
    code, err = group.end()
    assert code == 1
    assert "1 of 2 replicas failed (seed 0: " in err
    assert "state.safetensors: not readable as a checkpoint" in err
    assert "the other 1 are kept" in err
    assert step_of(group.folder(1)) == 48


def test_asked_to_stop_all_save_and_end() -> None:
    """Also on a slow disk, and where the terminal sends its Ctrl-C to each process."""
    group = Group([LONG | {"seed": seed} for seed in range(3)], 2, SLOW_DISK="1")
    group.read_until("progress", 6)
    workers = group.workers()
    assert len(workers) == 2
    os.killpg(group.process.pid, signal.SIGINT)
    assert group.end() == (3, "")
    assert group.said("stopped") == [f"by {signal.SIGINT.value}"]
    wait_until_gone(workers)
    assert len(group.began()) == 2
    assert group.said("failed") == []
    for i, (_, execution) in group.began().items():
        assert step_of(group.folder(i)) > 0
        assert events(execution) == ["killed"]


def test_left_alone_the_workers_save_and_end() -> None:
    """Their parent is killed outright: nobody tells them, and nobody hears them."""
    group = Group([LONG | {"seed": seed} for seed in range(2)], 2)
    group.read_until("progress", 6)
    workers = group.workers()
    group.process.kill()
    group.end()
    wait_until_gone(workers)
    assert len(group.began()) == 2
    for i, (_, execution) in group.began().items():
        assert step_of(group.folder(i)) > 0
        (event,) = execution.events()
        assert (event["event"], event["message"]) == ("killed", "stopped with the experiment")


# --- the stage --------------------------------------------------------------------------------------------------------

SINGLES = """
import sys
from pathlib import Path
from stages import train
from tests.conftest import Lab

Path("data/model").rename("with replicas")
Path("reports/history.json").rename("with replicas/history.json")
for seed in sys.argv[1:]:
    text = Path("params.yaml").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if not line.startswith(("seed:", "replicas:"))]
    Path("params.yaml").write_text("\\n".join([*lines, f"seed: {seed}", "replicas: 1", ""]), encoding="utf-8")
    train.main()
    Path("data/model").rename(f"single-{seed}")
    for name in ("history.json", "validation.json"):
        Path("reports", name).rename(f"single-{seed}/{name}")
"""


def start_stage() -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "stages.train"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> Any:
    until = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < until, "never came true"
        time.sleep(0.05)
    return found


def replica(seed: int) -> Execution | None:
    """The latest execution of a replica, once it has begun to train."""
    found = [execution for execution in Execution.all() if execution.record.parent and execution.record.seed == seed]
    return found[-1] if found and any(found[-1].entries()) else None


def single_runs(lab: Lab, seeds: list[int]) -> dict[str, bytes]:
    """What a stage with these replicas has left in data/model, made by single runs of each seed; moves it away."""
    seeds_as_text = [str(seed) for seed in seeds]
    subprocess.run([sys.executable, "-c", SINGLES, *seeds_as_text], check=True, env=environment(), capture_output=True)
    found: dict[str, bytes] = {}
    for seed in seeds:
        content = {Path(name).name: value for name, value in lab.bytes_of(f"single-{seed}").items()}
        own = {name: content[name] for name in ("config.json", "weights.safetensors")}
        kept = {f"snapshots/{name}": value for name, value in content.items() if name[0].isdigit()}  # of the first one
        found |= own | kept if seed == seeds[0] else {f"replicas/{seed}/{name}": value for name, value in own.items()}
        found |= {f"replicas/{seed}/{name}": content[name] for name in ("history.json", "validation.json")}
    return found


def with_replicas(lab: Lab) -> dict[str, bytes]:
    """Moved away by `single_runs`."""
    return {name.removeprefix("with replicas/"): content for name, content in lab.bytes_of("with replicas").items()}


def test_a_replica_is_byte_for_byte_the_single_run_of_its_seed(small_lab: Lab) -> None:
    small_lab.set(replicas=3, workers=2, seed=5)
    small_lab.run("prepare", "vocab")
    done = small_lab.command("stages.train")
    assert done.returncode == 0, done.stderr
    assert list(all_kept()) == []
    expected, found = single_runs(small_lab, [5, 6, 7]), with_replicas(small_lab)
    rows = json.loads(found.pop("history.json"))
    assert found == expected
    assert len({content for name, content in found.items() if name.endswith("weights.safetensors")}) == 3
    losses = [[row["loss"] for row in json.loads(found[f"replicas/{seed}/history.json"])] for seed in (5, 6, 7)]
    assert [row["loss"] for row in rows] == pytest.approx([sum(k) / 3 for k in zip(*losses, strict=True)])
    assert all(row["loss_low"] < row["loss"] < row["loss_high"] and row["replicas"] == 3 for row in rows)


@pytest.mark.slow
def test_replicas_of_a_stage_through_thick_and_thin(small_lab: Lab) -> None:
    """One is killed, then all are asked to stop, then they come to their end: each as the single run of its seed."""
    small_lab.set(replicas=3, workers=2, seed=5, epochs=60, checkpoint_every=0)
    small_lab.run("prepare", "vocab")

    process = start_stage()
    victim = wait_for(lambda: replica(6))
    os.kill(victim.record.trainer.pid, signal.SIGKILL)
    _, err = process.communicate(timeout=200)
    assert process.returncode == 1
    assert "train: warning: seed 6 failed: killed by SIGKILL\n" in err
    assert err.endswith(
        "error: 1 of 3 replicas failed (seed 6: killed by SIGKILL); the other 2 are kept, start again to go on\n"
    )
    assert [(event["event"], event["message"]) for event in victim.events()] == [("killed", "killed by SIGKILL")]
    assert not Path("data/model").exists()
    kept = {seed: replica(seed) for seed in (5, 7)}

    process = start_stage()
    wait_for(lambda: (found := replica(6)) and found.id != victim.id and len([*found.entries()]) > 9)
    process.terminate()
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err.splitlines()[-1]) == (143, "error: stopped by SIGTERM")
    assert sorted(step_of(folder) for folder in all_kept())[:2] != [0, 0]  # of the group itself there is no checkpoint
    assert not Path("data/model").exists()

    done = small_lab.command("stages.train")
    assert done.returncode == 0, done.stderr
    assert re.search(r"train: seed 6 goes on after update \d+ of an interrupted run", done.stdout)
    for seed, execution in kept.items():
        assert f"train: seed {seed} goes on after update 540 of an interrupted run" in done.stdout
        now = replica(seed)
        assert execution is not None
        assert now is not None
        assert now.id == execution.id
        assert events(now) == ["finished"]
    (whole,) = [execution for execution in Execution.all() if not execution.record.parent]
    assert [event["event"] for event in whole.events()] == ["trained"]
    assert list(all_kept()) == []

    expected, found = single_runs(small_lab, [5, 6, 7]), with_replicas(small_lab)
    del found["history.json"]
    assert found == expected


def test_replicas_are_listed_in_the_order_of_their_seeds_and_each_once(small_lab: Lab) -> None:
    """They begin in any order, and one that was killed before it had saved anything begins again."""
    params = Params().model_dump()
    whole = Execution.create("trained", params)
    for seed in (6, 5, 7, 6):
        one = Execution.create("trained", params | {"seed": seed}, parent=whole.id)
        whole.add_replica(one)
    assert [(found.record.seed, found.id == one.id) for found in whole.replicas()] == [
        (5, False),
        (6, True),
        (7, False),
    ]
