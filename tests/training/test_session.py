"""A training run: its records, that the seed decides them, and that it goes on anywhere as if never stopped."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.errors import ParamError
from stages.optim.schedules import noam_rate
from stages.params import TrainParams
from stages.training.batches import Batch, Indices, Sentences
from stages.training.checkpoint import Checkpoint
from stages.training.records import Record, Update, Validation, count_updates
from stages.training.scoring import score
from stages.training.session import Session
from tests.training.small import (
    HELD_OUT,
    SETTINGS,
    TEXT,
    VOCABULARY,
    bytes_of,
    divergences,
    new_session,
    sentences,
    settings,
    updates,
    validations,
    weights_of,
)

# --- records ----------------------------------------------------------------------------------------------------------


def test_steps_epochs_and_rates() -> None:
    records = list(new_session().records())
    assert [(u.step, u.epoch) for u in updates(records)] == [(i + 1, i // 7 + 1) for i in range(21)]
    assert [u.lr for u in updates(records)] == [noam_rate(t, 12, 5) for t in range(1, 22)]
    assert [(v.step, v.epoch, v.split) for v in validations(records)] == [
        (0, 0, "train"),
        (14, 2, "train"),
        (21, 3, "train"),
    ]
    assert all(u.loss > 0 and u.grad_norm > 0 for u in updates(records))
    assert len(records) == 24
    assert [records.index(v) for v in validations(records)] == [0, 15, 23]


def weight_vector(session: Session) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in session.model.parameters()]).double()


def test_the_rate_recorded_is_the_rate_that_moved_the_weights() -> None:
    session = new_session(optimizer="sgd", beta1=0, schedule="inverse_sqrt")
    before = weight_vector(session)
    moved = []
    for record in session.records():
        if isinstance(record, Update):
            after = weight_vector(session)
            # Plain gradient descent moves the weights by the rate times the norm of the gradient.
            assert (after - before).norm().item() == pytest.approx(record.lr * record.grad_norm, rel=1e-3)
            before = after
            moved.append(record)
    assert len(moved) == 21


def test_equal_settings_give_equal_weights_and_records() -> None:
    torch.random.manual_seed(1)
    one = new_session(seed=4)
    records = list(one.records())
    torch.random.manual_seed(2)
    same = new_session(seed=4)
    assert list(same.records()) == records
    assert weights_of(same) == weights_of(one)
    other = new_session(seed=5)
    assert list(other.records()) != records
    changed = weights_of(other)
    assert all(changed[name] != content for name, content in weights_of(one).items())


def test_training_draws_nothing_from_torchs_own_generator() -> None:
    session = new_session()
    before = torch.random.get_rng_state()
    assert len(list(session.records())) == 24
    assert torch.equal(torch.random.get_rng_state(), before)


def test_held_out_text_is_what_is_measured_where_there_is_some() -> None:
    assert {v.split for v in validations(list(new_session(held_out=HELD_OUT).records()))} == {"valid"}


def test_a_measurement_takes_no_more_text_than_it_is_given() -> None:
    first, *_ = new_session(eval_tokens=4).records()
    alone, *_ = new_session(text=TEXT[:1]).records()
    assert isinstance(first, Validation)
    assert isinstance(alone, Validation)
    assert first.loss == pytest.approx(alone.loss, rel=1e-6)


@pytest.mark.parametrize("batch_size", [7, 64])
def test_a_batch_as_large_as_the_corpus_is_one_update_an_epoch(batch_size: int) -> None:
    found = updates(list(new_session(batch_size=batch_size).records()))
    assert [u.step for u in found] == [1, 2, 3]
    assert all(math.isfinite(u.loss) and u.loss > 0 for u in found)


@pytest.mark.parametrize(
    ("changes", "steps"), [({"batch_size": 2}, 12), ({"accumulate": 2}, 12), ({"accumulate": 99}, 3)]
)
def test_a_last_batch_that_is_smaller_is_kept(changes: dict[str, int], steps: int) -> None:
    assert len(updates(list(new_session(**changes).records()))) == steps


@pytest.mark.parametrize("text", [[[4]], [[4], [5], [4, 6, 7, 8]], [[]]])
def test_hardly_any_text_trains(text: list[list[int]]) -> None:
    records = list(new_session(text).records())
    assert len(records) == 3 * len(text) + 3
    assert all(math.isfinite(record.loss) for record in (*updates(records), *validations(records)))


def test_training_lowers_the_loss() -> None:
    measured = validations(list(new_session(epochs=60, warmup=50, dropout=0.0).records()))
    assert measured[-1].loss < 0.75 < 2 < measured[0].loss
    assert measured[-1].perplexity == pytest.approx(math.exp(measured[-1].loss))
    assert measured[-1].accuracy > measured[0].accuracy


def test_dropout_is_for_training_alone() -> None:
    once = {"epochs": 1, "batch_size": 7, "factor": 1e-9}
    first, dropped, *_ = new_session(dropout=0.5, **once).records()
    same, plain, *_ = new_session(dropout=0.0, **once).records()
    assert isinstance(dropped, Update)
    assert isinstance(plain, Update)
    assert dropped.loss != plain.loss
    assert first == same
    assert isinstance(first, Validation)
    assert plain.loss == pytest.approx(first.loss, rel=1e-5)


def test_clipping_bounds_the_step_and_the_record_keeps_the_norm_before_it() -> None:
    plain = {"optimizer": "sgd", "beta1": 0, "schedule": "none", "lr": 1.0, "epochs": 1, "batch_size": 7}
    start = weight_vector(new_session(**plain))
    free, clipped = new_session(**plain), new_session(**plain, clip=0.01)
    ((free_update,), (update,)) = updates(list(free.records())), updates(list(clipped.records()))
    assert update.grad_norm == free_update.grad_norm > 1
    assert (weight_vector(clipped) - start).norm().item() == pytest.approx(0.01, rel=1e-3)
    assert (weight_vector(free) - start).norm().item() == pytest.approx(update.grad_norm, rel=1e-3)


@pytest.mark.parametrize("changes", [{}, {"batch_size": 2}, {"accumulate": 3, "max_updates": 5}, {"max_updates": 2}])
def test_updates_are_counted_before_the_run(changes: dict[str, int]) -> None:
    session = new_session(**changes)
    assert session.updates == len(updates(list(session.records())))


def test_the_updates_of_the_notebook() -> None:
    counts = [count_updates(math.ceil(9 / size), TrainParams(batch_size=size)) for size in (1, 2, 9, 64)]
    assert counts == [2700, 1500, 300, 300]


def test_a_text_shorter_than_a_window_is_refused_by_name() -> None:
    with pytest.raises(ParamError, match=r"^params\.yaml: context = 64: expected less than the 34 tokens of the text$"):
        new_session(batches="packed", context=64)


# --- divergence -------------------------------------------------------------------------------------------------------

WILD = {"optimizer": "sgd", "schedule": "none", "lr": 1e30, "batch_size": 7}


@pytest.mark.parametrize(("epochs", "step"), [(1, 1), (5, 2)])
def test_a_run_that_diverges_ends_with_a_record_that_names_the_update(epochs: int, step: int) -> None:
    """With one epoch the measurement after the only update finds it; with more, the second update."""
    session = new_session(**WILD, epochs=epochs)
    records = list(session.records())
    (divergence,) = divergences(records)
    assert records[-1] == divergence == session.divergence
    assert (divergence.step, divergence.epoch, divergence.lr) == (step, step, 1e30)
    assert session.done
    assert list(session.records()) == []
    assert str(divergence).startswith(f"diverged at update {step}: ")
    assert "is not finite, at rate 1e+30; lower factor, lr or decay, raise warmup, or set clip" in str(divergence)
    assert [u.step for u in updates(records)] == [1]
    assert all(math.isfinite(record.loss) for record in records if isinstance(record, Update | Validation))


def no_gradient_in_range(session: Session) -> None:
    """The loss is large, yet finite; the square of the gradient is not."""
    session.model.output.weight.mul_(1e25)


def no_loss_in_range(session: Session) -> None:
    """The least likely words are infinitely unlikely; the gradient is one or zero."""
    session.model.output.bias[4:] = -3e38
    session.model.output.bias[0] = 3e38


@pytest.mark.parametrize(
    ("spoil", "problem"), [(no_gradient_in_range, "gradient norm inf"), (no_loss_in_range, "loss inf")]
)
@pytest.mark.parametrize("block", ["notebook", "post"])
def test_what_is_not_finite_moves_no_weight(spoil: Callable[[Session], None], problem: str, block: str) -> None:
    session = new_session(dropout=0.0, block=block)
    records = session.records()
    assert isinstance(next(records), Validation)
    with torch.no_grad():
        spoil(session)
    before = weights_of(session)
    (divergence,) = records
    assert str(divergence).startswith(f"diverged at update 1: {problem} is not finite, at rate ")
    assert divergence == session.divergence
    assert weights_of(session) == before
    assert session.step == 0


def test_weights_that_start_out_of_range_diverge_before_the_first_update() -> None:
    session = new_session()
    with torch.no_grad():
        session.model.output.weight.fill_(math.nan)
    (divergence,) = session.records()
    assert str(divergence).startswith("diverged at update 0: train loss nan is not finite, at rate 0;")


# --- going on ---------------------------------------------------------------------------------------------------------

RUNS: dict[str, dict[str, Any]] = {
    "notebook": {"block": "notebook", "heads": "full"},
    "no dropout": {"dropout": 0.0},
    "accumulated": {"accumulate": 2, "batch_size": 2},
    "packed": {"batches": "packed", "context": 5, "batch_size": 2},
    "bucketed": {"batches": "bucketed", "batch_size": 2, "dropout": 0.1},
    "shards": {"shards": 2, "threads": 2, "batch_size": 3},
    "adamw": {"optimizer": "adamw", "decay": 0.1, "clip": 0.5, "tied_output": True, "block": "pre"},
    "sgd": {"optimizer": "sgd", "lr": 0.05, "schedule": "constant"},
    "plain sgd": {"optimizer": "sgd", "lr": 0.05, "schedule": "inverse_sqrt", "beta1": 0.0},
    "nadam": {"optimizer": "nadam", "decay": 0.1, "decay_form": "decoupled"},
    "adafactor": {"optimizer": "adafactor", "schedule": "linear", "lr": 0.1},
    "muon": {"optimizer": "muon", "decay": 0.1, "schedule": "wsd", "lr": 0.01, "tied_output": True, "clip": 0.5},
    "adagrad": {"optimizer": "adagrad", "schedule": "cosine", "lr": 0.05, "min_lr": 0.01},
    "lion": {"optimizer": "lion", "counting": "annotated", "factor": 0.05},
    "soap": {"optimizer": "soap", "schedule": "constant", "lr": 0.01, "d_model": 24, "epochs": 5},  # to a second basis
    "ademamix": {"optimizer": "ademamix"},
    "prodigy": {"optimizer": "prodigy", "schedule": "constant", "lr": 100.0},
    "schedulefree": {"optimizer": "schedulefree", "schedule": "constant", "lr": 0.05, "eval_every": 1},
    "many draws": {"d_model": 48, "batch_size": 7, "epochs": 14, "layers": 5, "eval_every": 5},  # more than a pool
    "held out": {"eval_every": 1, "max_updates": 17},
}


def run_of(name: str) -> Session:
    return new_session(held_out=HELD_OUT if name == "held out" else (), **RUNS[name])


@cache
def straight(name: str) -> tuple[list[Record], dict[str, bytes]]:
    """Records and final weights of a run that nothing stops."""
    session = run_of(name)
    return list(session.records()), weights_of(session)


def take(session: Session, count: int) -> list[Record]:
    return list(itertools.islice(session.records(), count))


def through_the_disk(session: Session, name: str, done: Sequence[Record]) -> Session:
    """A new session that goes on from what a checkpoint kept of this one."""
    saving = Checkpoint({"run": name})
    saving.begin()
    saving.claim("an execution")
    tensors, place = session.state()
    saving.save(tensors, {"session": place}, updates(done))
    saving.release()
    loading = Checkpoint({"run": name})
    saved = loading.load()
    loading.release()
    assert saved is not None
    assert saved.updates == updates(done)
    again = run_of(name)
    again.restore(saved.tensors, saved.place["session"])
    return again


@pytest.fixture(scope="module", autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DVC_ROOT", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.mark.parametrize("name", RUNS)
def test_stopped_after_any_record_it_goes_on_as_if_never_stopped(name: str) -> None:
    """Before the first record and after the last, within an epoch and at its end, before and after measurements."""
    records, weights = straight(name)
    measured = [i for i, record in enumerate(records) if isinstance(record, Validation)]
    assert len(measured) >= 3
    stops = {4, *measured, *(i + 1 for i in measured)} if name != "notebook" else set(range(len(records) + 1))
    first, done = run_of(name), []
    going = first.records()  # to the end: being saved is no change either
    for stop in sorted(stops):
        done += itertools.islice(going, stop - len(done))
        second = through_the_disk(first, name, done)
        assert second.step == len(updates(done))
        assert [*done, *second.records()] == records, f"stopped after record {stop}"
        assert weights_of(second) == weights, f"stopped after record {stop}"


@hypothesis.settings(max_examples=20)
@given(st.sampled_from([*RUNS]), st.lists(st.integers(0, 9), max_size=6))
def test_stopped_again_and_again_it_is_still_the_same_run(name: str, stops: list[int]) -> None:
    records, weights = straight(name)
    session, done = run_of(name), []
    for count in stops:
        done += take(session, count)
        session = through_the_disk(session, name, done)
    assert [*done, *session.records()] == records
    assert weights_of(session) == weights


@pytest.mark.parametrize("stop", [0, 3, 8, 15])
@pytest.mark.parametrize("name", ["notebook", "packed", "sgd"])
def test_loading_and_saving_without_training_changes_nothing(name: str, stop: int) -> None:
    records, weights = straight(name)
    session = run_of(name)
    done = take(session, stop)
    contents = []
    for _ in range(3):
        session = through_the_disk(session, name, done)
        checkpoint = Checkpoint({"run": name})
        saved = checkpoint.load()
        checkpoint.release()
        assert saved is not None
        contents.append((bytes_of(saved.tensors), saved.place, saved.updates, saved.checksum))
    assert contents[0] == contents[1] == contents[2]
    assert [u.lr for u in updates([*done, *session.records()])] == [u.lr for u in updates(records)]
    assert weights_of(session) == weights


def test_after_going_on_the_rate_of_the_schedule_moves_the_weights() -> None:
    """The optimiser that steps is the one whose rate is recorded."""
    plain: dict[str, Any] = {"optimizer": "sgd", "beta1": 0.0, "lr": 0.05, "schedule": "inverse_sqrt", "warmup": 20}
    first, second = new_session(**plain), new_session(**plain)
    take(first, 8)
    second.restore(*first.state())
    before, rates = weight_vector(second), []
    for record in itertools.islice(second.records(), 5):
        after = weight_vector(second)
        assert isinstance(record, Update)
        assert (after - before).norm().item() == pytest.approx(record.lr * record.grad_norm, rel=1e-3)
        before = after
        rates.append(record.lr)
    assert rates == [pytest.approx(0.05 * t / 20, rel=1e-12) for t in range(8, 13)]


def test_what_is_measured_and_kept_of_an_average_is_the_average() -> None:
    session = run_of("schedulefree")
    *_, last = session.records()
    tensors, _ = session.state()
    kept = {name.removeprefix("weights."): weight for name, weight in tensors.items() if name.startswith("weights.")}
    assert bytes_of(kept) != weights_of(session)
    session.model.load_state_dict(kept)
    result = score(session.model, sentences(TEXT), tokens=100, max_length=512)
    assert isinstance(last, Validation)
    assert result.loss == last.loss


class Watched(Sentences):
    """Sentences that remember which of them were asked for."""

    def __init__(self, text: Sentences) -> None:
        super().__init__(text.ids)
        self.asked: list[int] = []

    def batch(self, indices: Sequence[int] | Indices) -> Batch:
        self.asked += [int(i) for i in indices]
        return super().batch(indices)


@pytest.mark.parametrize("stop", [0, 1, 7, 8, 9, 14, 15, 20])
def test_each_epoch_has_an_order_of_its_own_also_after_going_on(stop: int) -> None:
    def watched() -> tuple[Session, Watched]:
        text = Watched(sentences(TEXT))
        parts = {"train": text, "valid": sentences(HELD_OUT)}
        return Session(settings(epochs=4), VOCABULARY, parts), text

    whole, expected = watched()
    assert len(list(whole.records())) == 31
    first, before = watched()
    take(first, stop)
    second, after = watched()
    second.restore(*first.state())
    assert len(list(second.records())) == 31 - stop
    asked = before.asked + after.asked
    assert asked == expected.asked
    epochs = [asked[start : start + 7] for start in range(0, 28, 7)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(7))] * 4
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_a_session_that_is_over_has_no_more_records() -> None:
    session = new_session()
    list(session.records())
    again = new_session()
    again.restore(*session.state())
    assert again.done
    assert list(again.records()) == []


def test_the_place_is_json_and_the_rest_tensors() -> None:
    session = new_session(optimizer="adamw")
    take(session, 5)
    tensors, place = session.state()
    assert json.loads(json.dumps(place, allow_nan=False)) == place
    assert {type(tensor) for tensor in tensors.values()} <= {torch.Tensor, torch.nn.Parameter}
    assert tensors["order"].dtype == tensors["dropout"].dtype == torch.uint8


@pytest.mark.parametrize("missing", ["weights.embedding.weight", "order", "dropout"])
def test_a_state_without_one_of_its_tensors_is_refused(missing: str) -> None:
    tensors, place = new_session().state()
    del tensors[missing]
    with pytest.raises(KeyError, match=missing):
        new_session().restore(tensors, place)


@pytest.mark.parametrize(
    ("changes", "missing"),
    [
        ({}, "exp_avg"),
        ({"optimizer": "muon"}, "0.momentum_buffer"),
        ({"optimizer": "soap"}, "0.Q.1"),
        ({"optimizer": "prodigy", "schedule": "none"}, "group.0.d_numerator"),
    ],
)
def test_a_state_without_a_part_of_the_optimisers_is_refused(changes: dict[str, Any], missing: str) -> None:
    session = new_session(**changes)
    take(session, 5)
    tensors, place = session.state()
    new_session(**changes).restore(tensors, place)
    del tensors[f"optimizer.{missing}"]
    with pytest.raises(KeyError, match=missing):
        new_session(**changes).restore(tensors, place)


def test_a_state_of_another_optimiser_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        new_session(optimizer="muon").restore(*new_session().state())


def test_a_state_of_another_shape_is_refused() -> None:
    with pytest.raises(RuntimeError, match="must match the size"):
        new_session(d_model=24).restore(*new_session().state())
    assert SETTINGS["d_model"] == 12


def test_other_settings_give_other_runs(tmp_path: Path) -> None:
    """So that the runs compared above differ in what they are named after."""
    finals = {tuple(straight(name)[1].values()) for name in RUNS}
    assert len(finals) == len(RUNS)
    assert np.isfinite([record.loss for record in straight("shards")[0] if isinstance(record, Update)]).all()
