"""A run with its journal and checkpoint: stopped or killed, it goes on where it was, and each step is noted once."""

from __future__ import annotations

import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from stages.errors import CheckpointError, ParamError
from stages.execution import Execution
from stages.training.kept import checkpoints, key_of, step_of
from stages.training.records import Record, Update
from stages.training.runs import Listener, Stop, run_task
from tests.training.tasks import SPLITS, Heard, content_of, logged, outcome_of, python, task

RUN: dict[str, Any] = {"checkpoint_every": 4, "warmup": 20, "batch_size": 2}  # 12 updates, 4 an epoch


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in [name for name in os.environ if name.startswith("DVC_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def straight(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> tuple[tuple[Any, ...], list[tuple[int, str, float]]]:
    """Outcome and journal of a run that nothing stops, made in another folder."""
    with monkeypatch.context() as patch:
        patch.setenv("DVC_ROOT", str(Path("straight").absolute()))
        heard = Heard()
        outcome = outcome_of(task(**RUN, **changes), heard)
        ((identity, _),) = heard.executions
        execution = Execution.find(identity)
        assert execution is not None
        return content_of(outcome), logged(execution)


class At(Heard):
    """Does something right after an update."""

    def __init__(self, step: int, number: int) -> None:
        super().__init__()
        self._step, self._number = step, number

    def record(self, record: Record) -> None:
        super().record(record)
        if isinstance(record, Update) and record.step == self._step:
            os.kill(os.getpid(), self._number)


def test_what_a_run_comes_to(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard()
    one = task(**RUN)
    outcome = outcome_of(one, heard)
    assert [u.step for u in outcome.updates] == list(range(1, 13))
    assert [(v.step, v.split) for v in outcome.validations] == [(0, "valid"), (8, "valid"), (12, "valid")]
    assert outcome.divergence is None
    assert list(outcome.snapshots) == [0, 3, 6, 9]
    assert heard.records == sorted([*outcome.updates, *outcome.validations], key=lambda record: record.step)
    assert content_of(outcome) == straight(monkeypatch)[0]
    ((identity, step),) = heard.executions
    execution = Execution.find(identity)
    assert execution is not None
    assert step == 0
    assert (execution.record.params["warmup"], execution.record.environment) == (20, {"torch": "2"})
    assert [event["event"] for event in execution.events()] == []  # its end is for the caller to write


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("step", [1, 4, 7, 8, 12])
def test_a_signal_stops_it_between_updates_and_it_goes_on(
    number: signal.Signals, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, journal = straight(monkeypatch)
    one, heard = task(**RUN), At(step, number)
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt) as caught:
        outcome_of(one, heard)
    assert caught.value.args == (number,)
    assert signal.getsignal(number) is before
    assert step_of(checkpoints() / key_of(one.inputs)) == step
    again = Heard()
    assert content_of(outcome_of(one, again)) == expected
    (identity, _) = heard.executions[0]
    assert again.executions == [(identity, step)]
    assert heard.records + again.records == sorted([*expected[1], *expected[2]], key=lambda record: record.step)
    execution = Execution.find(identity)
    assert execution is not None
    assert logged(execution) == journal
    assert len(Execution.all()) == 1


KILLED = """
import os, signal, sys
import pytest
from stages.execution import Execution
from tests.training import tasks, test_runs as t

with pytest.MonkeyPatch.context() as patch:
    expected, journal = t.straight(patch)
for step in map(int, sys.argv[1:]):
    os.environ["DVC_ROOT"] = f"killed at {step}"
    if os.fork() == 0:
        tasks.outcome_of(tasks.task(**t.RUN), t.At(step, signal.SIGKILL))
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == -signal.SIGKILL
    heard = t.Heard()
    assert t.content_of(tasks.outcome_of(tasks.task(**t.RUN), heard)) == expected
    ((identity, gone_on),) = heard.executions
    execution = Execution.find(identity)
    assert tasks.logged(execution) == journal
    events = [entry["event"] for entry in execution.entries() if "event" in entry]
    print(step, gone_on, *events, flush=True)
"""


def test_killed_it_goes_on_from_its_last_checkpoint() -> None:
    """Each step is in the journal once: those done after the checkpoint are done again and not noted again."""
    done = python(KILLED, "1", "3", "5", "6", "8", "9", "12")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "1 0",  # before the first checkpoint, all is done again by another execution
        "3 0",
        "5 4 resumed",
        "6 4 resumed",
        "8 4 resumed",
        "9 8 resumed",
        "12 8 resumed",
    ]


def test_a_journal_that_is_behind_its_checkpoint_is_brought_up_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal is put onto the disk first; were it lost all the same, nothing is noted twice or left out."""
    expected, journal = straight(monkeypatch)
    one, heard = task(**RUN), At(7, signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        outcome_of(one, heard)
    execution = Execution.find(heard.executions[0][0])
    assert execution is not None
    lines = execution.journal_path.read_bytes().splitlines(keepends=True)
    execution.journal_path.write_bytes(b"".join(lines[:3]) + lines[3][:9])
    assert content_of(outcome_of(one)) == expected
    assert logged(execution) == journal


def test_a_run_that_is_over_is_not_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = straight(monkeypatch)
    outcome_of(task(**RUN))
    heard = Heard()
    assert content_of(outcome_of(task(**RUN), heard)) == expected
    assert heard.records == []
    assert heard.executions[0][1] == 12


@pytest.mark.parametrize("changes", [{"checkpoint_every": 1}, {"checkpoint_every": 0}, {"threads": 3}, {"workers": 2}])
def test_how_it_is_carried_out_may_change_when_it_goes_on(
    changes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, _ = straight(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        outcome_of(task(**RUN), At(6, signal.SIGTERM))
    heard = Heard()
    assert content_of(outcome_of(task(**RUN | changes), heard)) == expected
    assert heard.executions[0][1] == 6


@pytest.mark.parametrize("changes", [{"processes": 2}, {"top_k": 3}])
def test_a_checkpoint_of_another_number_of_processes_goes_on_in_a_run_of_its_own(
    changes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, journal = straight(monkeypatch)
    one, heard, again = task(**RUN), At(6, signal.SIGTERM), Heard()
    with pytest.raises(KeyboardInterrupt):
        outcome_of(replace(one, params=one.params | changes), heard)
    assert content_of(outcome_of(one, again)) == expected
    ((identity, step),) = again.executions
    assert (identity != heard.executions[0][0], step) == (True, 6)
    execution = Execution.find(identity)
    assert execution is not None
    assert execution.has(one.params)
    assert logged(execution) == journal


def test_other_parameters_start_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        outcome_of(task(**RUN), At(6, signal.SIGTERM))
    heard = Heard()
    outcome = outcome_of(task(**RUN | {"warmup": 40}), heard)
    assert heard.executions[0][1] == 0
    assert outcome.updates[0].lr == pytest.approx(12**-0.5 * 40**-1.5)
    assert len({u.lr for u in outcome.updates}) == 12


def test_without_resume_it_starts_anew_as_another_execution(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = straight(monkeypatch)
    first, second = At(6, signal.SIGTERM), Heard()
    with pytest.raises(KeyboardInterrupt):
        outcome_of(task(**RUN), first)
    assert content_of(outcome_of(task(**RUN, resume=False), second)) == expected
    assert second.executions[0][1] == 0
    assert first.executions[0][0] != second.executions[0][0]
    assert len(second.records) == 15


def test_a_damaged_checkpoint_is_refused_and_may_be_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = straight(monkeypatch)
    one = task(**RUN)
    with pytest.raises(KeyboardInterrupt):
        outcome_of(one, At(6, signal.SIGTERM))
    state = checkpoints() / key_of(one.inputs) / "state.safetensors"
    state.write_bytes(state.read_bytes()[:-1])
    for _ in range(2):  # the lock is let go of
        with pytest.raises(CheckpointError, match="not readable as a checkpoint"):
            outcome_of(one)
    assert content_of(outcome_of(replace(one, settings=one.settings.model_copy(update={"resume": False})))) == expected


def test_a_checkpoint_of_another_model_is_refused() -> None:
    """Which the digest of the inputs rules out; a copied folder does not get round it."""
    one = task(**RUN)
    with pytest.raises(KeyboardInterrupt):
        outcome_of(one, At(6, signal.SIGTERM))
    other = replace(one, settings=one.settings.model_copy(update={"d_model": 24}))
    with pytest.raises(CheckpointError, match=r"not of this model \(RuntimeError: The size of tensor"):
        outcome_of(other)


def test_two_processes_with_the_same_inputs_do_each_other_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    expected, _ = straight(monkeypatch)
    one = task(**RUN)

    class Another(Heard):
        def record(self, record: Record) -> None:
            super().record(record)
            if isinstance(record, Update) and record.step == 6:
                assert content_of(outcome_of(one)) == expected

    with Stop() as stop:
        checkpoint = run_task(one, SPLITS, stop, Another())
    assert checkpoint.alone
    checkpoint.release()
    assert content_of(outcome_of(one)) == expected


WILD = {"optimizer": "sgd", "schedule": "none", "lr": 1e30}


def test_one_that_diverges_has_an_outcome_that_stays() -> None:
    heard = Heard()
    one = task(**RUN | WILD)
    outcome = outcome_of(one, heard)
    assert outcome.divergence is not None
    assert outcome.divergence.step == 2
    assert heard.records[-1] == outcome.divergence
    assert [u.step for u in outcome.updates] == [1]
    execution = Execution.find(heard.executions[0][0])
    assert execution is not None
    assert [(event["event"], event["message"]) for event in execution.events()] == [
        ("diverged", str(outcome.divergence))
    ]
    assert content_of(outcome_of(one)) == content_of(outcome)
    assert len([entry for entry in execution.entries() if entry.get("event") == "diverged"]) <= 2


def test_a_signal_at_a_divergence_is_heeded() -> None:
    class Diverging(Heard):
        def record(self, record: Record) -> None:
            super().record(record)
            if not isinstance(record, Update) and record.step == 2:
                os.kill(os.getpid(), signal.SIGTERM)

    one = task(**RUN | WILD)
    with pytest.raises(KeyboardInterrupt):
        outcome_of(one, Diverging())
    assert outcome_of(one).divergence is not None


def test_a_text_too_short_for_its_windows_lets_go_of_the_lock() -> None:
    one = task(**RUN | {"batches": "packed", "context": 99})
    for _ in range(2):
        with pytest.raises(ParamError, match="context = 99"):
            outcome_of(one)
    assert checkpoints().exists()
    assert not (checkpoints() / key_of(one.inputs)).exists()


def test_no_room_for_checkpoints_is_one_message() -> None:
    checkpoints().parent.mkdir()
    checkpoints().write_text("in the way", encoding="utf-8")
    with pytest.raises(CheckpointError, match="checkpoints: a checkpoint could not be written"):
        outcome_of(task(**RUN))
    shutil.rmtree(checkpoints().parent)


# --- stopping ---------------------------------------------------------------------------------------------------------


def test_the_first_signal_asks_and_the_second_interrupts() -> None:
    with Stop() as stop:
        assert not stop.asked
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked
        assert stop.number == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt) as caught:
            os.kill(os.getpid(), signal.SIGINT)
        assert caught.value.args == (signal.SIGINT,)


def test_another_reason_to_stop_counts_as_a_signal() -> None:
    gone = False
    with Stop(also=lambda: gone) as stop:
        assert not stop.asked
        gone = True
        assert stop.asked
        assert stop.number == signal.SIGTERM


def test_a_listener_may_take_no_notice() -> None:
    listener = Listener()
    listener.record(Update(1, 1, 0.1, 2.0, 3.0))
    assert outcome_of(task(**RUN), listener).divergence is None
