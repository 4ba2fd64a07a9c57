"""A study on a real Dask: a scheduler and workers on loopback, which are killed, and one that computes otherwise."""

from __future__ import annotations

import datetime
import ipaddress
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from stages.errors import StudyError
from stages.studies.engines.dask import Dask
from stages.studies.messages import Work
from tests.pipeline.project import Project
from tests.services.clusters import (
    Cluster,
    another_clone,
    ended,
    locked_outputs,
    on_hub,
    sent,
    shared_project,
    study,
    until,
)
from tests.studies import small
from tests.studies.running import BASE, experiments, run_study

pytestmark = pytest.mark.services

TEN, FORTY = "small-warmup-10", "small-warmup-40"
NOWHERE = "dask://127.0.0.1:1"
# Long enough for a worker to be killed in the middle of a run.
LONG = BASE | {"epochs": 300, "checkpoint_every": 100}
# Rounds towards zero, in the processes that train.
OTHERWISE = """
#include <fenv.h>
#include <stdio.h>
#include <string.h>
__attribute__((constructor)) static void start(void) {
    char line[4096];
    FILE *file = fopen("/proc/self/cmdline", "r");
    size_t length = file ? fread(line, 1, sizeof line, file) : 0;
    for (size_t i = 0; i + 1 < length; i++)
        if (!line[i]) line[i] = ' ';
    line[length ? length - 1 : 0] = 0;
    if (strstr(line, "stages.studies.spot") || strstr(line, "stages.train")) fesetround(FE_TOWARDZERO);
}
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A scheduler and one worker."""
    made = Cluster(tmp_path_factory.mktemp("dask"))
    try:
        made.start_worker()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project with remotes, and with changes that are in no commit: they change what comes out."""
    made = shared_project(tmp_path_factory.mktemp("project"), base=LONG, seeds=10)
    edit(made)
    return made


def edit(project: Project) -> None:
    """Other random streams, and a file that was added and not committed."""
    module = project.root / "stages/training/randomness.py"
    text = module.read_text(encoding="utf-8")
    assert "def generator(" in text
    module.write_text(
        f"{text}\n\n_plain = generator\n\n\ndef generator(seed: int, purpose: str) -> torch.Generator:\n"
        "    return _plain(seed + 1000, purpose)\n",
        encoding="utf-8",
    )
    (project.root / "added.bin").write_bytes(bytes(range(256)))
    project.run("git", "add", "added.bin")


@pytest.fixture(scope="module")
def run_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder on what stands for shared storage."""
    return tmp_path_factory.mktemp("shared") / "state"


@pytest.fixture(scope="module")
def studied(project: Project, cluster: Cluster, run_state: Path) -> str:
    """What a study said, one of whose workers was killed in the middle of a variant."""
    (worker,) = cluster.processes[1:]
    running = study(project, cluster.place, NOAM_RUNSTATE=str(run_state))
    until(lambda: list(run_state.glob("checkpoints/*/state.safetensors")), 90)
    shown = sent(project, run_state)
    os.kill(worker.pid, signal.SIGKILL)
    cluster.start_worker()
    cluster.start_worker()
    output = ended(running, 200)
    assert running.returncode == 0, output + cluster.log
    return "\n".join([*shown, output])


def test_a_variant_of_a_killed_worker_goes_on_elsewhere_from_its_checkpoint(
    studied: str, project: Project, cluster: Cluster, run_state: Path
) -> None:
    assert "runs on" in studied.split("variants of")[0]
    assert "waits for a machine" in studied
    assert "died" in studied
    assert "(2 of 3)" in studied
    assert "2 ran 0 known 0 failed" in studied
    events = [
        [entry["event"] for entry in journal_of(path) if "event" in entry]
        for path in run_state.glob("executions/*/journal.jsonl")
    ]
    assert sum("resumed" in one for one in events) == 1
    assert len(events) == 2
    assert not list(run_state.glob("checkpoints/*"))
    assert cluster.clones() == []


def test_each_result_is_there_once_and_the_same_as_here(studied: str, project: Project, tmp_path: Path) -> None:
    """Byte for byte, with the changes that are in no commit, whatever code the worker has installed."""
    refs = on_hub(project)
    assert len([ref for ref in refs if ref.startswith("refs/noam/done/")]) == 2
    assert sorted(ref.rsplit("/", 1)[1] for ref in refs if ref.startswith("refs/exps/")) == [TEN, FORTY]
    assert set(experiments(project).values()) == set(refs.values())

    here = Project(shutil.copytree(project.root, tmp_path / "my tree", symlinks=True))
    for ref in here.run("git", "for-each-ref", "--format=%(refname)", "refs/exps").stdout.split():
        here.run("git", "update-ref", "-d", ref)
    shutil.rmtree(here.root / ".runstate", ignore_errors=True)
    assert "2 ran 0 known 0 failed" in run_study(here)
    for name in (TEN, FORTY):
        mine, theirs = experiments(here)[name], experiments(project)[name]
        assert locked_outputs(project, theirs) == locked_outputs(here, mine)
        trees = [here.run("git", "rev-parse", f"{commit}^{{tree}}").stdout for commit in (mine, theirs)]
        assert trees[0] == trees[1]


def test_a_colleague_gets_them_without_running_them(studied: str, project: Project, tmp_path: Path) -> None:
    colleague = another_clone(project, tmp_path / "colleague")
    edit(colleague)
    output = ended(study(colleague, NOWHERE))
    assert output.count("taken from the git remote") == 2
    assert "0 ran 2 known 0 failed" in output
    assert experiments(colleague) == experiments(project)


def test_a_study_goes_on_after_its_scheduler_was_lost_even_on_a_worker_that_computes_otherwise(
    studied: str, project: Project, cluster: Cluster, run_state: Path, tmp_path: Path
) -> None:
    """What it gives is kept, and named so."""
    small.write(project.root, base=LONG, factors={"warmup": [10, 40, 20]}, seeds=10, baseline={"warmup": 10})
    running = study(project, cluster.place, NOAM_RUNSTATE=str(run_state))
    until(lambda: list(run_state.glob("checkpoints/*/state.safetensors")), 90)
    for process in cluster.processes:  # else the worker might bring its result to the git remote nonetheless
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
    output = ended(running, 90)
    assert running.returncode == 1
    assert "error: dask://127.0.0.1" in output
    assert "the scheduler is gone" in output
    assert "Traceback" not in output

    cluster.scheduler = cluster.start_scheduler()
    (tmp_path / "otherwise.c").write_text(OTHERWISE, encoding="utf-8")
    library = tmp_path / "otherwise.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, tmp_path / "otherwise.c", "-lm"], check=True)
    cluster.start_worker(LD_PRELOAD=str(library))
    resumed = study(project, cluster.place, NOAM_RUNSTATE=str(run_state))
    output = ended(resumed, 200)
    assert resumed.returncode == 0, output + cluster.log
    assert "1 ran 2 known 0 failed" in output
    assert "computes otherwise with numerics portable" in output
    strange = [line for line in output.splitlines() if line.startswith("warmup=20: made on")]
    assert len(strange) == 1
    environment = {"NOAM_RUNSTATE": str(run_state)}
    status = project.run("python", "-m", "stages.cli", "study", "status", "small.yaml", **environment).stdout
    assert status.count("computes otherwise") == 1
    assert cluster.clones() == []


# --- the engine alone -------------------------------------------------------------------------------------------------


WORK = Work("k", "n", "/nowhere", "0" * 40, "", b"", {}, {}, (), "store", {}, "portable")


def outcome(engine: Dask) -> str:
    """The problem that a worker tells of a variant that nobody can run."""
    engine.submit(WORK)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        for event in engine.events():
            if event.kind == "ended":
                assert event.result is not None
                return event.result.problem
    raise AssertionError("no outcome")


def test_with_certificates_of_an_authority_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import dask
    import distributed  # noqa: F401 (with it come its defaults)

    files = certificates(tmp_path)
    options = [part for key in ("ca-file", "cert", "key") for part in (f"--tls-{key}", str(files[key]))]
    made = Cluster(tmp_path, options)
    try:
        made.start_worker()
        assert made.place.startswith("tls://127.0.0.1:")
        with dask.config.set({"distributed.comm.tls.ca-file": None}), pytest.raises(StudyError, match="certificates"):
            Dask(made.place, print)
        known = {f"distributed.comm.tls.client.{key}": str(files[key]) for key in ("cert", "key")}
        lines: list[str] = []
        with dask.config.set({"distributed.comm.tls.ca-file": str(files["ca-file"])} | known):
            engine = Dask(made.place, lines.append)
            try:
                assert "/nowhere" in outcome(engine) or "ls-remote" in outcome(engine)
            finally:
                engine.close()
        assert [line for line in lines if "without TLS" in line] == []
    finally:
        made.close()


def test_a_scheduler_for_everybody_is_warned_of(tmp_path: Path) -> None:
    made = Cluster(tmp_path)
    try:
        made.start_scheduler("0.0.0.0")
        lines: list[str] = []
        port = made.address.rpartition(":")[2]
        Dask(f"dask://127.0.0.1:{port}", lines.append).close()
        assert [line for line in lines if "without TLS" in line and "0.0.0.0" in line]
    finally:
        made.close()


def test_no_scheduler_is_one_message() -> None:
    with pytest.raises(StudyError, match="no scheduler of Dask answers"):
        Dask(NOWHERE, print)


def certificates(folder: Path) -> dict[str, Path]:
    """A certificate of 127.0.0.1, and the authority that signed it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    now = datetime.datetime.now(datetime.UTC)
    keys = {name: ec.generate_private_key(ec.SECP256R1()) for name in ("authority", "machine")}
    names = {name: x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]) for name in keys}

    def signed(name: str, *, authority: bool) -> x509.Certificate:
        place = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        return (
            x509.CertificateBuilder()
            .subject_name(names[name])
            .issuer_name(names["authority"])
            .public_key(keys[name].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=1))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(place, critical=False)
            .sign(keys["authority"], hashes.SHA256())
        )

    found = {"ca-file": folder / "ca.pem", "cert": folder / "cert.pem", "key": folder / "key.pem"}
    pem = serialization.Encoding.PEM
    found["ca-file"].write_bytes(signed("authority", authority=True).public_bytes(pem))
    found["cert"].write_bytes(signed("machine", authority=False).public_bytes(pem))
    plain = serialization.NoEncryption()
    kind = serialization.PrivateFormat.PKCS8
    found["key"].write_bytes(keys["machine"].private_bytes(pem, kind, plain))
    return found


def journal_of(path: Path) -> list[dict[str, object]]:
    import json

    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
