"""Where training computes: what is chosen, what is refused, and that draws and what is saved are the processor's.

No GPU is needed: the way of another device is walked with the processor in its place.
"""

from __future__ import annotations

import pytest
import torch

from stages.errors import ParamError
from stages.numerics import describe
from stages.training import devices, engine
from stages.training.session import Session
from tests.training.small import VOCABULARY, divergences, new_session, settings, splits, updates, weights_of
from tests.training.tasks import outcome_of, task


def has(monkeypatch: pytest.MonkeyPatch, *, cuda: int = 0, mps: bool = False) -> None:
    """Torch finds these here."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: cuda > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: cuda)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: mps)


def test_auto_is_the_first_of_cuda_mps_and_cpu_that_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, cuda=1, mps=True)
    assert devices.resolve("auto") == "cuda"
    has(monkeypatch, mps=True)
    assert devices.resolve("auto") == "mps"
    assert devices.resolve("auto", processes=2) == "cpu"  # no process group knows mps
    has(monkeypatch)
    assert devices.resolve("auto") == "cpu"


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_a_device_that_is_not_there_is_refused_with_what_is(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch)
    with pytest.raises(
        ParamError, match=rf"device = {kind}: expected cpu or auto here \(torch 2\.\d+.*, built "
    ) as caught:
        devices.resolve(kind)
    assert caught.value.key == "device"


def test_each_process_of_a_machine_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    has(monkeypatch, cuda=2)
    assert devices.resolve("cuda", processes=2) == "cuda"
    with pytest.raises(ParamError, match=r"processes = 3: expected, with device: cuda, at most 2, a GPU each"):
        devices.resolve("cuda", processes=3)


def test_bf16_is_refused_where_a_processor_has_no_instructions_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    devices.check_precision("fp32", "cpu")
    with pytest.raises(
        ParamError, match=r"precision = bf16: expected fp32 here \(this processor has neither AVX512_BF16"
    ):
        outcome_of(task(precision="bf16"))
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    devices.check_precision("bf16", "cpu")


def test_the_forward_pass_in_bf16_has_losses_near_those_of_fp32() -> None:
    """Past the check: slow where the processor has no such instructions, and right all the same."""
    chosen = {"warmup": 40, "batch_size": 4, "block": "pre"}
    full, mixed = new_session(**chosen), new_session(**chosen, precision="bf16")
    losses = [[update.loss for update in updates(list(session.records()))] for session in (full, mixed)]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert losses[1] != losses[0]
    for weight in mixed.weights().values():
        assert weight.dtype == torch.float32
    remembered, _ = mixed._engine.remembered()
    assert {tensor.dtype for tensor in remembered.values()} == {torch.float32}


@pytest.mark.parametrize("block", ["notebook", "pre"])
@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_the_way_of_another_device_gives_the_same_losses(
    block: str, optimizer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {"warmup": 40, "batch_size": 4, "accumulate": 2, "block": block, "optimizer": optimizer, "clip": 0.5}
    expected = list(new_session(**chosen).records())
    for module in (devices, engine):
        monkeypatch.setattr(module, "is_host", lambda device: False)
    session = Session(settings(**chosen), VOCABULARY, splits(), device=torch.device("cpu"))
    found = list(session.records())
    assert [one.loss for one in updates(found)] == pytest.approx([one.loss for one in updates(expected)], abs=1e-5)
    assert [one.grad_norm for one in updates(found)] == pytest.approx(
        [one.grad_norm for one in updates(expected)], rel=1e-4
    )
    tensors, place = session.state()
    assert {tensor.device.type for tensor in tensors.values()} == {"cpu"}
    again = Session(settings(**chosen), VOCABULARY, splits(), device=torch.device("cpu"))
    again.restore(tensors, place)
    assert weights_of(again) == weights_of(session)


def test_another_device_notices_a_divergence(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (devices, engine):
        monkeypatch.setattr(module, "is_host", lambda device: False)
    session = new_session(schedule="none", lr=1e30, optimizer="sgd", epochs=20)
    assert divergences(list(session.records())) == [session.divergence]


def test_the_device_is_in_the_record_of_what_a_run_computes_with() -> None:
    assert describe("native")["device"] == "cpu"
    assert describe("native", "cuda")["device"] == "cuda"
