"""What interrupted runs left behind under `.runstate/`, and what a move of the project broke: `noam doctor`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stages import paths
from stages.execution import Execution
from stages.moving import Fault, project_faults
from stages.training.kept import ABOUT, STATE, about, all_kept, checkpoints, discard, is_in_use, step_of


@dataclass(frozen=True)
class Leftover:
    """Something of a run that did not come to its end.

    Attributes:
        path: where it is.
        what: in words.
        in_use: a process works on it just now.
    """

    path: Path
    what: str
    in_use: bool


def leftovers() -> list[Leftover]:
    """Checkpoints, and lock files without one."""
    found = [Leftover(folder, _describe(folder), is_in_use(folder)) for folder in all_kept()]
    locks = [lock for lock in sorted(checkpoints().glob("*.lock")) if not lock.with_suffix("").is_dir()]
    gone = "lock of a checkpoint that is gone"
    return found + [Leftover(lock, gone, False) for lock in locks if not is_in_use(lock.with_suffix(""))]


def unclosed() -> list[Execution]:
    """Executions whose end nobody has recorded, and that nobody works on any more."""
    return [one for one in Execution.all() if not one.ended() and not one.alive()]


def doctor(*, clean: bool = False, fix: bool = False, faults: Sequence[Fault] = (), damage: Sequence[str] = ()) -> int:
    """Say what is left behind and what points to a former folder; what is in use stays.

    Args:
        clean: remove what is left behind.
        fix: mend what can be mended.
        faults: further ones, of the MLflow store.
        damage: what nothing here can mend.

    Returns:
        The exit code: 1 if something is wrong that was not mended. What is left behind is not wrong.
    """
    found, open_ends = leftovers(), unclosed()
    for one in found:
        print(f"{_shown(one.path)}: {one.what}{', in use' if one.in_use else ''}")
    for execution in open_ends:
        print(f"{_shown(execution.folder)}: ended without a word; `noam sync` records that")
    wrong = [*project_faults(), *faults]
    left = _mend(wrong, fix=fix) + len(damage)
    for what in damage:
        print(f"damaged: {what}")
    if not found and not open_ends and not wrong and not damage:
        print("nothing was left behind")
    removable = [one for one in found if not one.in_use]
    if clean:
        for one in removable:
            if one.path.is_dir():
                discard(one.path)
            else:
                one.path.unlink(missing_ok=True)
        print(f"removed: {len(removable)}")
    elif removable:
        print("the same run goes on from its checkpoint; `noam doctor --clean` removes what is not in use")
    return 1 if left else 0


def _mend(faults: Sequence[Fault], *, fix: bool) -> int:
    """Mend what can be mended, or say it; the number of faults that are left."""
    left = 0
    for what, mend in faults:
        if mend is None:
            print(f"for you to mend: {what}")
            left += 1
        elif fix:
            mend()
            print(f"mended: {what}")
        else:
            print(f"to be mended: {what}")
            left += 1
    if any(mend is not None for _, mend in faults) and not fix:
        print("the project was moved or copied; `noam doctor --fix` mends that")
    return left


def _shown(path: Path) -> Path:
    """From the main workspace, where it lies in that."""
    root = paths.main_root()
    return path.relative_to(root) if path.is_relative_to(root) else path


def _describe(folder: Path) -> str:
    content, state = about(folder), folder / STATE
    if not (folder / ABOUT).is_file() and not state.is_file():
        return "an empty folder of a checkpoint"
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) / 2**20
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime((state if state.is_file() else folder).stat().st_mtime))
    inputs = content.get("inputs", {})
    names = ("warmup", "optimizer", "schedule", "seed")
    keys = {name: inputs.get(f"params.yaml ({name})") for name in names}
    settings = ", ".join(f"{name} {value}" for name, value in keys.items() if value is not None)
    if "replicas" in inputs:
        return f"a group of {inputs['replicas']} replicas from seed {keys['seed']} on, begun {when}"
    return f"a run interrupted after update {step_of(folder)} ({settings}), {when}, {size:.1f} MB"
