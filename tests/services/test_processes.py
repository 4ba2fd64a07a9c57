"""One model over several processes as a user meets it: what dies, what is interrupted, what torchrun starts."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stages.training.kept import step_of
from tests.conftest import Lab
from tests.training.test_processes import python

pytestmark = pytest.mark.services

SETTINGS = {
    "d_model": 16,
    "hidden": 16,
    "n_heads": 2,
    "epochs": 260,
    "warmup": 10,
    "eval_every": 100,
    "batch_size": 4,
    "processes": 2,
    "checkpoint_every": 40,
}
OUTPUTS = ("data/model", "reports/history.json", "reports/validation.json")
SECONDS_TO_END = 30


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A project that has its vocabulary, and the outputs of a run that nothing disturbed under `undisturbed`."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("prepared")
        for name in [name for name in os.environ if name.startswith("DVC_")]:
            patch.delenv(name)
        patch.setenv("NOAM_LIVE", "off")
        patch.chdir(folder)
        lab = Lab(folder)
        lab.set(**SETTINGS)
        lab.run("prepare", "vocab")
        train(lab)
        for name in OUTPUTS:
            (folder / "undisturbed" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).rename(folder / "undisturbed" / name)
        yield lab


@pytest.fixture
def lab(prepared: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """A copy of it, without outputs of training."""
    monkeypatch.setenv("NOAM_LIVE", "off")
    return copy_of(prepared, tmp_path)


def copy_of(prepared: Lab, folder: Path) -> Lab:
    shutil.copytree(
        prepared.folder, folder, ignore=shutil.ignore_patterns(".runstate", "undisturbed"), dirs_exist_ok=True
    )
    lab = object.__new__(Lab)
    lab.folder = folder
    return lab


def undisturbed(prepared: Lab) -> dict[str, bytes]:
    return {
        name.removeprefix("undisturbed/"): content
        for name, content in prepared.bytes_of(*(f"undisturbed/{name}" for name in OUTPUTS)).items()
    }


def train(lab: Lab) -> str:
    """To the end; returns what was said."""
    done = lab.command("stages.train")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def saved(lab: Lab) -> int:
    """Updates done at the last checkpoint."""
    folders = (lab.folder / ".runstate" / "checkpoints").glob("*")
    return max((step_of(folder) for folder in folders if folder.is_dir()), default=0)


class Running:
    """Training under way, with a new checkpoint on the disk."""

    def __init__(self, lab: Lab) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "stages.train"],
            cwd=lab.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        before, deadline = saved(lab), time.monotonic() + 60
        while saved(lab) == before:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                pytest.fail(f"no new checkpoint: {self.process.communicate()[0]}")
            time.sleep(0.01)
        children = psutil.Process(self.process.pid).children()
        self.ranks = sorted(children, key=lambda child: (child.create_time(), child.pid))

    def end(self) -> tuple[int, str, float]:
        """Exit code, what was said, and seconds that it took."""
        start = time.monotonic()
        said, _ = self.process.communicate(timeout=SECONDS_TO_END + 15)
        seconds = time.monotonic() - start
        assert not [rank for rank in self.ranks if rank.is_running()], "a process was left behind"
        return self.process.returncode, said, seconds


def test_whatever_ends_a_run_it_goes_on_to_the_bytes_of_one_never_disturbed(lab: Lab, prepared: Lab) -> None:
    for rank in (0, 1):
        running = Running(lab)
        assert len(running.ranks) == 2
        running.ranks[rank].kill()
        code, said, seconds = running.end()
        assert code == 1
        assert f"error: rank {rank} of 2 was killed by SIGKILL" in said
        assert "Traceback" not in said
        assert seconds < SECONDS_TO_END

    for number in (signal.SIGINT, signal.SIGTERM):
        running = Running(lab)
        if number is signal.SIGINT:
            os.killpg(running.process.pid, number)  # as a terminal does
        else:
            running.process.send_signal(number)
        code, said, _ = running.end()
        assert code == 128 + number
        assert f"error: stopped by {number.name}" in said
        assert "Traceback" not in said

    running = Running(lab)
    running.process.kill()  # which watches the ranks
    gone, alive = psutil.wait_procs(running.ranks, timeout=SECONDS_TO_END)
    running.process.communicate()
    assert (len(gone), alive) == (2, [])

    assert not (lab.folder / "data/model").exists()
    said = train(lab)
    assert re.search(r"goes on after update \d+ of an interrupted run", said), said
    assert lab.bytes_of(*OUTPUTS) == undisturbed(prepared)


def test_a_rank_that_stands_still_ends_the_run(lab: Lab) -> None:
    running = Running(lab)
    running.ranks[1].suspend()
    code, said, seconds = running.end()
    assert code == 1
    assert "rank 1 of 2 stood still (SIGSTOP)" in said
    assert seconds < SECONDS_TO_END


def test_a_sharded_run_goes_on_to_the_same_bytes_and_with_another_number(tmp_path: Path) -> None:
    small = {"batch_size": 4, "epochs": 20, "warmup": 1000, "checkpoint_every": 7, "processes": 2}
    runs = [
        small | {"processes": 1},
        small | {"fsdp": True},
        small | {"fsdp": True, "stop_after": 1},
        small | {"stop_after": 1, "and_then": {"processes": 3, "fsdp": True}},
    ]
    done = python("tests.training.together", json.dumps(runs), folder=tmp_path)
    one, sharded, interrupted, by_others = [json.loads(line) for line in done.stdout.splitlines()]
    for found in (interrupted, by_others):
        first, second = found.pop("told")["begun"]
        assert (first, second > 0) == (0, True)
    assert sharded.pop("told")["begun"] == [0, 0]
    assert interrupted == sharded
    assert len(one["losses"]) == 40
    for found in (sharded, by_others):
        assert found["losses"] == pytest.approx(one["losses"], abs=1e-5)
        assert found["validations"] == pytest.approx(one["validations"], abs=1e-5)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def torchrun(lab: Lab, port: int, *, first: bool) -> subprocess.Popen[str]:
    """An agent with one process, of two on what stands for two machines."""
    script = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "1"]
    script += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "lab"]
    script += ["--rdzv-conf", f"is_host={int(first)}", "--local-addr", "127.0.0.1", "-m", "stages.train"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}
    return subprocess.Popen(
        script, cwd=lab.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def run_two(labs: list[Lab]) -> list[tuple[int, str]]:
    port = free_port()
    agents = [torchrun(lab, port, first=i == 0) for i, lab in enumerate(labs)]
    try:
        said = [agent.communicate(timeout=90)[0] for agent in agents]
    finally:
        for agent in agents:
            if agent.poll() is None:
                agent.terminate()
                agent.wait(30)
    return [(agent.returncode, one) for agent, one in zip(agents, said, strict=True)]


def test_two_nodes_of_torchrun_make_what_two_processes_of_one_machine_make(prepared: Lab, tmp_path: Path) -> None:
    labs = [copy_of(prepared, tmp_path / name) for name in ("a", "b")]
    ends = run_two(labs)
    assert [code for code, _ in ends] == [0, 0], ends
    written = [bool(lab.bytes_of(*OUTPUTS)) for lab in labs]
    assert sorted(written) == [False, True]  # torchrun says which of them has rank 0
    assert labs[written.index(True)].bytes_of(*OUTPUTS) == undisturbed(prepared)
    assert not (labs[written.index(False)].folder / ".runstate").exists()


def test_nodes_with_other_parameters_do_not_train_together(prepared: Lab, tmp_path: Path) -> None:
    labs = [copy_of(prepared, tmp_path / name) for name in ("a", "b")]
    labs[1].set(**SETTINGS | {"warmup": 11})
    ends = run_two(labs)
    assert all(code != 0 for code, _ in ends)
    assert all("of 2 has other parameters, code, data or version of torch than rank 0" in said for _, said in ends), (
        ends
    )
    assert not any(lab.bytes_of(*OUTPUTS) for lab in labs)
