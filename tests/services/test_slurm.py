"""A study as jobs of a real Slurm: its daemons on loopback, one node, one of whose jobs is killed."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.clusters import ended, on_hub, sent, shared_project, study, until
from tests.studies.running import BASE, experiments

_DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")
_FOUND = {name: shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") for name in _DAEMONS}
_MISSING = [name for name, path in _FOUND.items() if path is None]

pytestmark = pytest.mark.services
needs_slurm = pytest.mark.skipif(
    bool(_MISSING) or os.getuid() != 0,
    reason=f"needs {', '.join(_MISSING)} (Debian: slurm-wlm, munge)" if _MISSING else "slurmd needs to be root",
)

CONFIGURATION = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
MpiDefault=none
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=100000
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
ReturnToService=2
KillWait=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of somebody on a machine with Slurm, whose daemons run until the module is over."""
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(os.urandom(128))
    (folder / "munge.key").chmod(0o400)
    ports = free_ports(2)
    text = CONFIGURATION.format(
        host=platform.node(), controller=ports[0], node=ports[1], folder=folder, cpus=max(2, os.cpu_count() or 1)
    )
    (folder / "slurm.conf").write_text(text, encoding="utf-8")
    environment = {"SLURM_CONF": str(folder / "slurm.conf"), "NOAM_SCRATCH": str(folder / "scratch")}
    commands = [
        [
            *("munged", "--foreground", "--force", f"--socket={folder}/munge.socket", f"--key-file={folder}/munge.key"),
            *(f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log", f"--seed-file={folder}/seed"),
        ],
        ["slurmctld", "-D", "-c"],
        ["slurmd", "-D", "-c"],
    ]
    processes = []
    try:
        for name, *options in commands:
            with open(folder / f"{name}.out", "wb") as log:
                command = [str(_FOUND[name]), *options]
                env = os.environ | environment
                processes.append(subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT))
            if name == "munged":
                until((folder / "munge.socket").exists, 20)
        until(lambda: state_of_nodes(environment) in ("idle", "mixed"), 30, why=said(folder))
        yield environment
    finally:
        for process in reversed(processes):
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def state_of_nodes(environment: dict[str, str]) -> str:
    command = ["sinfo", "--noheader", "--format=%T"]
    asked = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    return asked.stdout.strip()


def said(folder: Path) -> str:
    logs = [*folder.glob("*.log"), *folder.glob("*.out")]
    return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-1500:]}" for log in logs)


@needs_slurm
def test_a_study_of_two_variants_one_of_whose_jobs_is_killed(slurm: dict[str, str], tmp_path: Path) -> None:
    project = shared_project(tmp_path, base=BASE | {"epochs": 10}, seeds=10)
    running = study(project, "slurm", "partition=main,cpus=1", PYTHONPATH=str(project.root), **slurm)
    until(lambda: any("runs on" in state for state in sent(project)), 60)
    until(lambda: list((Path(slurm["NOAM_SCRATCH"])).glob("*/clone/dvc.lock")), 60)
    jobs = subprocess.run(
        ["squeue", "--noheader", "--states=RUNNING", "--format=%i"],
        env=os.environ | slurm,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    subprocess.run(["scancel", "--signal=KILL", jobs[0]], env=os.environ | slurm, check=True)

    output = ended(running, 200)
    assert running.returncode == 0, output
    assert "tried again (2 of 3)" in output
    assert "2 ran 0 known 0 failed" in output
    assert experiments(project).keys() == {"small-warmup-10", "small-warmup-40"}
    assert sum(ref.startswith("refs/noam/done/") for ref in on_hub(project)) == 2
    assert list((project.root / ".runstate/slurm").glob("*_log.out"))
    assert not list(Path(slurm["NOAM_SCRATCH"]).glob("*"))
