"""A run on disk: whatever is done to the file or happens while it is written, one whole checkpoint loads, or none."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from stages.errors import CheckpointError
from stages.training.checkpoint import Checkpoint, Saved, read
from stages.training.kept import checkpoints, discard, exists, is_in_use, key_of, left_behind, step_of
from stages.training.records import Update
from tests.conftest import ROOT
from tests.training.small import bytes_of

INPUTS = {"params.yaml (warmup)": 4, "data/vocab/train.npy": "d41d8"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the checkpoint of INPUTS lies."""
    for name in [name for name in os.environ if name.startswith("DVC_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return checkpoints() / key_of(INPUTS)


def tensors_at(step: int) -> dict[str, torch.Tensor]:
    return {
        "weights.a": torch.full((40, 5), step / 3),
        "order": torch.randint(0, 256, (500,), dtype=torch.uint8, generator=torch.Generator().manual_seed(step)),
    }


def updates_to(step: int) -> list[Update]:
    return [Update(t, (t + 8) // 9, 1e-7 * t, 2.5 / t, 1 / 3 + t) for t in range(1, step + 1)]


def save(checkpoint: Checkpoint, step: int) -> None:
    checkpoint.save(tensors_at(step), {"session": {"step": step}}, updates_to(step))


def begun(inputs: dict[str, Any] = INPUTS) -> Checkpoint:
    checkpoint = Checkpoint(inputs)
    checkpoint.begin()
    checkpoint.claim("20250101-000000-abcdef01")
    return checkpoint


def kept(*steps: int) -> None:
    """Checkpoints at these updates, one after the other."""
    checkpoint = begun()
    for step in steps:
        save(checkpoint, step)
    checkpoint.release()


def load(inputs: dict[str, Any] = INPUTS) -> Saved | None:
    checkpoint = Checkpoint(inputs)
    try:
        return checkpoint.load()
    finally:
        checkpoint.release()


def check(saved: Saved | None, step: int) -> None:
    """It is all that was saved at that update, and nothing else."""
    assert saved is not None
    assert bytes_of(saved.tensors) == bytes_of(tensors_at(step))
    assert saved.place == {"session": {"step": step}}
    assert saved.updates == updates_to(step)


# --- saving and loading -----------------------------------------------------------------------------------------------


def test_the_last_checkpoint_comes_back_whole(folder: Path) -> None:
    assert load() is None
    for steps in ([0], [1, 2], [7, 7, 30]):
        kept(*steps)
        check(load(), steps[-1])
        assert sorted(path.name for path in folder.iterdir()) == ["about.json", "state.safetensors", "updates.f64"]
    checkpoint = Checkpoint(INPUTS)
    check(checkpoint.load(), 30)
    assert checkpoint.execution() == "20250101-000000-abcdef01"
    save(checkpoint, 31)
    checkpoint.release()
    check(load(), 31)
    assert (folder / "updates.f64").stat().st_size == 31 * 40


def test_what_was_written_after_the_last_checkpoint_does_not_count(folder: Path) -> None:
    """Updates get to the disk first; a process that dies then leaves some that belong to no checkpoint."""
    kept(5)
    for more in (b"\x00", b"\x07" * 40, b"\x07" * 4000):
        with open(folder / "updates.f64", "ab") as file:
            file.write(more)
        checkpoint = Checkpoint(INPUTS)
        check(checkpoint.load(), 5)
        save(checkpoint, 6)
        checkpoint.release()
        check(load(), 6)
        kept(5)


def test_other_inputs_are_another_checkpoint() -> None:
    kept(5)
    assert load(INPUTS | {"params.yaml (warmup)": 8}) is None
    assert load({"params.yaml (warmup)": 4}) is None
    check(load(dict(reversed(INPUTS.items()))), 5)


def test_what_it_belongs_to_is_said_and_another_begin_forgets_it(folder: Path) -> None:
    kept(5)
    content = json.loads((folder / "about.json").read_text(encoding="utf-8"))
    assert content["inputs"] == INPUTS
    assert content["workspace"] == str(Path.cwd().resolve())
    checkpoint = Checkpoint(INPUTS)
    checkpoint.begin()
    assert (checkpoint.load(), checkpoint.execution()) == (None, "")
    checkpoint.claim("other")
    save(checkpoint, 2)
    check(checkpoint.load(), 2)
    checkpoint.release()


def test_a_second_process_with_the_same_inputs_has_a_folder_of_its_own(folder: Path) -> None:
    kept(5)
    first = Checkpoint(INPUTS)
    second = Checkpoint(INPUTS)
    assert (first.alone, second.alone) == (True, False)
    assert second.load() is None
    second.begin()
    second.claim("other")
    save(second, 3)
    check(first.load(), 5)
    assert first.folder == folder != second.folder
    assert is_in_use(first.folder)
    assert is_in_use(second.folder)
    first.release()
    assert not is_in_use(first.folder)
    check(load(), 5)
    discard(second.folder)
    assert not second.folder.exists()


def test_a_lock_of_a_process_that_died_holds_nobody_up(folder: Path) -> None:
    script = f"from stages.training.checkpoint import Checkpoint; import os; c = Checkpoint({INPUTS!r}); os._exit(9)"
    assert python(script).returncode == 9
    checkpoint = Checkpoint(INPUTS)
    assert checkpoint.alone
    checkpoint.release()


def test_discarding_leaves_nothing(folder: Path) -> None:
    kept(5)
    assert exists(INPUTS)
    discard(folder)
    assert not exists(INPUTS)
    assert list(checkpoints().iterdir()) == []


def test_what_an_interrupted_run_differs_in_is_listed() -> None:
    assert left_behind(INPUTS) is None
    kept(5)
    assert left_behind(INPUTS) is None
    assert left_behind(INPUTS | {"params.yaml (warmup)": 8}) == (5, ["params.yaml (warmup)"])
    other = INPUTS | {"params.yaml (warmup)": 9, "new": 1}
    checkpoint = begun(other)
    assert left_behind(other | {"new": 2}) == (5, ["new", "params.yaml (warmup)"])  # of the other nothing is saved yet
    save(checkpoint, 2)
    checkpoint.release()
    assert left_behind(INPUTS | {"params.yaml (warmup)": 8}) == (5, ["params.yaml (warmup)"])  # the most alike
    assert left_behind(other | {"new": 2}) == (2, ["new"])
    Path("elsewhere").mkdir()
    os.chdir("elsewhere")
    os.environ["DVC_ROOT"] = str(Path.cwd().parent)
    try:
        assert left_behind(INPUTS | {"params.yaml (warmup)": 8}) is None  # of another workspace
    finally:
        del os.environ["DVC_ROOT"]


# --- what is no checkpoint --------------------------------------------------------------------------------------------


def refusal() -> str:
    with pytest.raises(CheckpointError) as caught:
        load()
    assert "\n" not in str(caught.value)
    assert "`noam doctor --clean` removes it, `-S resume=false` trains without it" in str(caught.value)
    return str(caught.value)


def test_a_checkpoint_cut_short_anywhere_is_refused(folder: Path) -> None:
    kept(5)
    whole = (folder / "state.safetensors").read_bytes()
    for length in {*range(0, len(whole), 37), 1, 7, 8, 9, len(whole) - 1}:
        (folder / "state.safetensors").write_bytes(whole[:length])
        assert "state.safetensors: not readable as a checkpoint (" in refusal()
        assert step_of(folder) == 0
    (folder / "state.safetensors").write_bytes(whole)
    check(load(), 5)


def test_updates_that_are_cut_short_altered_or_gone_are_refused(folder: Path) -> None:
    kept(5)
    path = folder / "updates.f64"
    whole = path.read_bytes()
    assert len(whole) == 200
    for length in range(200):
        path.write_bytes(whole[:length])
        assert "updates.f64: not what the checkpoint beside it was saved with" in refusal()
    for at in range(0, 200, 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert "updates.f64: not what" in refusal()
    path.unlink()
    assert "updates.f64: not what" in refusal()
    path.write_bytes(whole)
    check(load(), 5)


class Call:
    """A pickle that makes a folder when it is loaded."""

    def __reduce__(self) -> tuple[Callable[..., None], tuple[str]]:
        return os.mkdir, ("executed",)


def torch_bytes(value: object) -> bytes:
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


@pytest.mark.parametrize("dump", [pickle.dumps, torch_bytes, lambda value: pickle.dumps(value, protocol=0)])
@pytest.mark.parametrize("name", ["state.safetensors", "updates.f64", "about.json"])
def test_a_pickle_in_the_place_of_a_file_is_never_loaded(
    folder: Path, name: str, dump: Callable[[object], bytes]
) -> None:
    kept(5)
    (folder / name).write_bytes(dump(Call()))
    if name == "about.json":
        check(load(), 5)
        assert Checkpoint(INPUTS).execution() == ""
    else:
        refusal()
    assert step_of(folder) == (0 if name == "state.safetensors" else 5)
    assert not Path("executed").exists()
    pickle.loads(pickle.dumps(Call()))
    assert Path("executed").exists()  # the pickle was a live one


def test_torchs_own_loader_has_no_part_in_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        pytest.fail("torch.load was called")

    monkeypatch.setattr(torch, "load", never)
    monkeypatch.setattr(torch, "save", never)
    kept(5)
    check(load(), 5)
    assert set(safetensors.torch.load_file(folder / "state.safetensors")) == {"weights.a", "order"}


def header(path: Path) -> dict[str, str]:
    with safetensors.safe_open(path, framework="pt") as file:
        return dict(file.metadata())


def test_a_foreign_file_of_tensors_is_refused(folder: Path) -> None:
    kept(5)
    state = folder / "state.safetensors"
    good = header(state)
    for metadata, words in (
        (None, "not a checkpoint of this program"),
        ({}, "not a checkpoint of this program"),
        (good | {"format": "noam-lab checkpoint 0"}, "not a checkpoint of this program"),
        (good | {"key": "0" * 24}, "a checkpoint of another run"),
        ({"format": good["format"]}, "not readable as a checkpoint"),
        (good | {"place": "{"}, "not readable as a checkpoint"),
        (good | {"updates": "five"}, "not readable as a checkpoint"),
        (good | {"updates": "6"}, "updates.f64: not what"),
        (good | {"updates": "-1"}, "updates.f64: not what"),
        (good | {"checksum": "1"}, "updates.f64: not what"),
    ):
        safetensors.torch.save_file(tensors_at(5), state, metadata=metadata)
        assert words in refusal()
    safetensors.torch.save_file(tensors_at(5), state, metadata=good)
    check(load(), 5)


def test_the_file_of_another_run_is_refused(folder: Path) -> None:
    kept(5)
    other = INPUTS | {"params.yaml (warmup)": 8}
    (checkpoints() / key_of(other)).mkdir()
    for name in ("state.safetensors", "updates.f64"):
        shutil.copy(folder / name, checkpoints() / key_of(other))
    with pytest.raises(CheckpointError, match="a checkpoint of another run"):
        load(other)


def test_a_folder_without_a_checkpoint_cannot_be_read() -> None:
    with pytest.raises(CheckpointError, match=r"could not be written or read \(.*No such file"):
        read(Path("nowhere"), "key")


# --- no room, no permission -------------------------------------------------------------------------------------------


def test_a_file_in_the_place_of_a_folder_is_one_line(folder: Path) -> None:
    kept(5)
    checkpoint = Checkpoint(INPUTS)
    checkpoint.load()
    folder.rename("kept")
    folder.write_text("in the way", encoding="utf-8")
    for attempt in (lambda: checkpoint.claim("x"), lambda: save(checkpoint, 6)):
        with pytest.raises(CheckpointError, match=rf"{folder.name}: a checkpoint could not be written or read \("):
            attempt()
    folder.unlink()
    Path("kept").rename(folder)
    save(checkpoint, 6)
    checkpoint.release()
    check(load(), 6)


def test_a_file_in_the_place_of_all_checkpoints_is_one_line() -> None:
    checkpoints().parent.mkdir()
    checkpoints().write_text("in the way", encoding="utf-8")
    with pytest.raises(
        CheckpointError, match=r"checkpoints: a checkpoint could not be written or read \(File exists\)"
    ):
        Checkpoint(INPUTS)


def python(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a script here, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


FULL_DISK = """
import resource, signal, sys
from stages.errors import CheckpointError
from tests.training import test_checkpoint as t

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # a write beyond the limit fails then, as on a full disk
checkpoint = t.Checkpoint(t.INPUTS)
t.check(checkpoint.load(), 5)
for limit in (0, 100, 200, 230, 400, 1000, 1300):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        t.save(checkpoint, 9)
    except CheckpointError as error:
        print(error)
    else:
        sys.exit(f"{limit}: saved")
    t.check(t.read(checkpoint.folder, t.key_of(t.INPUTS)), 5)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
t.save(checkpoint, 9)
"""


def test_a_full_disk_keeps_the_last_checkpoint(folder: Path) -> None:
    """Wherever the room ends: in the list of updates, in the header, among the tensors."""
    kept(5)
    done = python(FULL_DISK)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 7
    assert all("a checkpoint could not be written or read (" in line for line in lines)
    assert all("the last good one is untouched" in line for line in lines)
    check(load(), 9)
    assert sorted(path.name for path in folder.iterdir()) == ["about.json", "state.safetensors", "updates.f64"]


# --- killed while it saves --------------------------------------------------------------------------------------------

KILLED = """
import os, signal, sys
import safetensors.torch
from tests.training import test_checkpoint as t

left = 0

def before(what):
    global left
    left -= 1
    if left == 0:
        print(what, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

def hooked(module, name):
    original = getattr(module, name)
    def call(*arguments, **named):
        before(name)
        return original(*arguments, **named)
    setattr(module, name, call)

for module, name in ((os, "fsync"), (os, "replace"), (os, "rename"), (safetensors.torch, "save_file")):
    hooked(module, name)
events = {"open", "os.truncate", "os.rename", "os.remove", "os.chmod", "shutil.rmtree"}
sys.addaudithook(lambda event, arguments: before(event) if event in events and left > 0 else None)

checkpoint = t.Checkpoint(t.INPUTS)
t.check(checkpoint.load(), 5)
for n in range(1, 99):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.dup2(writer, 1)
        left = n
        t.save(checkpoint, 9)
        os._exit(0)
    _, status = os.wait()
    os.close(writer)
    what = os.read(reader, 100).decode().strip()
    found = t.read(checkpoint.folder, t.key_of(t.INPUTS))
    t.check(found, len(found.updates))
    print(n, len(found.updates), what, flush=True)
    if status == 0:
        break
    assert os.WTERMSIG(status) == signal.SIGKILL
    if len(found.updates) == 9:  # back to where it was
        t.shutil.rmtree(checkpoint.folder)
        t.shutil.copytree("backup", checkpoint.folder)
"""


def test_killed_before_any_operation_of_a_save_a_whole_checkpoint_loads(folder: Path) -> None:
    kept(5)
    shutil.copytree(folder, "backup")
    done = python(KILLED)
    assert (done.returncode, done.stderr) == (0, "")
    found = [line.split(maxsplit=2) for line in done.stdout.splitlines()]
    assert [int(n) for n, *_ in found] == list(range(1, len(found) + 1))
    steps = [int(step) for _, step, *_ in found]
    assert steps == sorted(steps)
    assert set(steps) == {5, 9}
    names = [what[0] for _, _, *what in found if what]
    assert names.count("fsync") == 3  # the updates, the state, its name
    assert names.count("save_file") == 1
    renamed = names.index("replace") if "replace" in names else names.index("rename")
    assert max(i for i, name in enumerate(names) if name == "save_file") < renamed
    assert names[renamed - 1] in ("fsync", "rename", "replace", "os.rename")  # no name before the content is safe
    assert steps[:renamed] == [5] * renamed


AT_RANDOM = """
import itertools, os, random, signal, sys, time
from tests.training import test_checkpoint as t

draw = random.Random(int(sys.argv[2]))
for _ in range(int(sys.argv[1])):
    before = t.load()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # does nothing but save
        checkpoint = t.Checkpoint(t.INPUTS)
        checkpoint.load()
        for step in itertools.count(len(before.updates)):
            t.save(checkpoint, step)
            os.write(writer, b"+")
    os.close(writer)
    time.sleep(draw.uniform(0.01, 0.2))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    said = len(os.read(reader, 9999))
    saved = t.load()
    t.check(saved, len(saved.updates))
    assert len(before.updates) + said - 1 <= len(saved.updates) <= len(before.updates) + said
    print(len(saved.updates))
"""


def killed_at_random(times: int) -> list[int]:
    """Updates of the checkpoint found after each kill."""
    kept(5)
    done = python(AT_RANDOM, str(times), "0")
    assert (done.returncode, done.stderr) == (0, "")
    return [int(line) for line in done.stdout.split()]


@pytest.mark.parametrize("times", [20, pytest.param(300, marks=pytest.mark.slow)])
def test_killed_at_any_moment_it_has_lost_nothing_that_was_saved(times: int) -> None:
    steps = killed_at_random(times)
    assert len(steps) == times
    assert steps == sorted(steps)
    assert steps[-1] > 5
