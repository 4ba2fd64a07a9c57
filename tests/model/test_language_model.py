"""The language model: positions, initial weights, tied output, losses."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from stages.model.language_model import LanguageModel, initialise, language_model_loss, sinusoids
from stages.text.vocabulary import BOS, EOS, PAD

NewModel = Callable[..., LanguageModel]


@pytest.mark.parametrize(("positions", "twice"), [("paper", 1), ("notebook", 2)])
def test_positions_are_their_formula(positions: str, twice: int) -> None:
    table_TD = sinusoids(300, 6, positions)
    assert table_TD.shape == (300, 6)
    for t in (0, 1, 7, 299):
        for j in (0, 2, 4):
            angle = t / 10000 ** (twice * j / 6)
            assert table_TD[t, j].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert table_TD[t, j + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_the_input_is_the_scaled_embedding_and_the_position(new_model: NewModel) -> None:
    model = new_model(block="pre", layers=1)
    seen: list[Tensor] = []
    ids_BT = torch.tensor([[1, 4, 4]])
    model(ids_BT, lambda x: seen.append(x) or x)
    torch.testing.assert_close(seen[0], 12**0.5 * model.embedding(ids_BT) + sinusoids(3, 12, "paper"))


def test_a_longer_sentence_changes_nothing_for_a_shorter_one(new_model: NewModel) -> None:
    model = new_model()
    short = torch.tensor([[1, 4, 5]])
    with torch.inference_mode():
        before, _ = model(short)
        model(torch.tensor([[1, *range(4, 20)]]))
        after, _ = model(short)
    assert torch.equal(before, after)
    loss = language_model_loss(model(short)[0], short, "cross_entropy", ignore=PAD)
    loss.backward()  # tables made while measuring serve training too
    assert model.embedding.weight.grad is not None


def test_split_heads_share_the_width_and_full_heads_have_it_each(new_model: NewModel) -> None:
    split, full = new_model(heads="split"), new_model(heads="full")
    assert split.blocks[0].attention.qkv.weight.shape == (3 * 12, 12)
    assert full.blocks[0].attention.qkv.weight.shape == (3 * 3 * 12, 12)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("block", ["notebook", "post", "pre"])
def test_initial_weights_come_from_the_generator_alone(new_model: NewModel, block: str, tied: bool) -> None:
    state = torch.random.get_rng_state()
    one, same, other = (new_model(seed, block=block, tied_output=tied) for seed in (5, 5, 6))
    torch.random.manual_seed(1)
    again = new_model(5, block=block, tied_output=tied)
    for a, b, c, d in zip(*(m.parameters() for m in (one, same, again, other)), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a, c)
        assert not torch.equal(a, d) or a.unique().numel() == 1  # norms
    torch.random.set_rng_state(state)
    before = torch.random.get_rng_state()
    initialise(one, torch.Generator().manual_seed(0))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("tied", [False, True])
def test_initial_weights_have_torchs_scale(new_model: NewModel, tied: bool) -> None:
    model = new_model(d_model=64, hidden=256, n_heads=4, layers=1, vocab_size=500, tied_output=tied)
    assert model.embedding.weight.std().item() == pytest.approx(64**-0.5 if tied else 1.0, rel=0.03)
    for layer in (model.blocks[0].feed_forward.w1, model.blocks[0].feed_forward.w2, model.blocks[0].attention.qkv):
        bound = layer.in_features**-0.5
        assert bound * 0.98 < layer.weight.abs().max().item() <= bound
        assert layer.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.03)
    assert model.output.bias.abs().max().item() <= 64**-0.5


def test_a_tied_output_is_the_embedding(new_model: NewModel) -> None:
    tied, free = new_model(tied_output=True), new_model()
    assert tied.output.weight is tied.embedding.weight
    count = [sum(parameter.numel() for parameter in model.parameters()) for model in (tied, free)]
    assert count[1] - count[0] == 20 * 12


LOGITS = st.lists(st.lists(st.floats(-20, 20), min_size=5, max_size=5), min_size=1, max_size=4)


@given(LOGITS, st.data())
def test_the_losses_are_means_over_the_targets(logits: list[list[float]], data: st.DataObject) -> None:
    targets = data.draw(st.lists(st.integers(0, 4), min_size=len(logits), max_size=len(logits)))
    real = [i for i, target in enumerate(targets) if target != PAD]
    if not real:
        return
    logits_BTV, targets_BT = torch.tensor([logits], dtype=torch.float64), torch.tensor([targets])
    probabilities = [[math.exp(x) / sum(map(math.exp, row)) for x in row] for row in logits]
    right = -sum(math.log(probabilities[i][targets[i]]) for i in real) / len(real)
    twice = -sum(probabilities[i][targets[i]] - math.log(sum(map(math.exp, probabilities[i]))) for i in real) / len(
        real
    )
    found = [language_model_loss(logits_BTV, targets_BT, kind, PAD).item() for kind in ("cross_entropy", "notebook")]
    assert found == pytest.approx([right, twice], rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("words", [5, 15, 50])
def test_the_notebooks_loss_has_a_floor_above_zero(words: int) -> None:
    certain = torch.full((1, 1, words), -1e4).index_fill(2, torch.tensor([3]), 1e4)
    target = torch.tensor([[3]])
    assert language_model_loss(certain, target, "cross_entropy", PAD).item() == 0
    floor = math.log(words - 1 + math.e) - 1
    assert language_model_loss(certain, target, "notebook", PAD).item() == pytest.approx(floor, rel=1e-6)
    if words == 15:
        assert floor == pytest.approx(1.8165, abs=5e-5)


def overfit(model: LanguageModel, loss: str) -> list[float]:
    """300 updates on one sentence of five tokens."""
    ids_BT = torch.tensor([[BOS, 10, 20, 30, 40, EOS]])
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(300):
        logits_BTV, _ = model(ids_BT[:, :-1])
        value = language_model_loss(logits_BTV, ids_BT[:, 1:], loss, PAD)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(value.item())
    return losses


@pytest.mark.parametrize("block", ["post", "pre"])
def test_one_sentence_is_learnt_by_heart(new_model: NewModel, block: str) -> None:
    losses = overfit(new_model(vocab_size=50, d_model=32, n_heads=2, hidden=32, block=block), "cross_entropy")
    assert losses[0] == pytest.approx(math.log(50), abs=0.5)
    assert losses[-1] < 0.05


def test_the_notebooks_block_learns_it_too(new_model: NewModel) -> None:
    losses = overfit(new_model(vocab_size=50, d_model=32, n_heads=2, hidden=32, block="notebook"), "cross_entropy")
    assert losses[-1] < 0.05


def test_a_second_softmax_keeps_the_loss_up(new_model: NewModel) -> None:
    losses = overfit(new_model(vocab_size=50, d_model=32, n_heads=2, hidden=32), "notebook")
    assert losses[-1] > math.log(math.e + 49) - 1 - 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("block", ["notebook", "post", "pre"])
def test_random_words_cannot_be_predicted(new_model: NewModel, block: str) -> None:
    """A model that saw the future would fall far below ln 20 on 5 000 uniformly random tokens over 20 symbols."""
    source = torch.Generator().manual_seed(0)
    tokens = torch.randint(4, 24, (6000,), generator=source).view(-1, 20)
    train_BT, valid_BT = tokens[:250], tokens[250:]
    model = new_model(vocab_size=24, d_model=32, n_heads=2, hidden=64, block=block)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(20):
        for rows in torch.randperm(250, generator=source).split(10):
            batch_BT = train_BT[rows]
            language_model_loss(model(batch_BT[:, :-1])[0], batch_BT[:, 1:], "cross_entropy", PAD).backward()
            optimizer.step()
            optimizer.zero_grad()
    with torch.inference_mode():
        loss = language_model_loss(model(valid_BT[:, :-1])[0], valid_BT[:, 1:], "cross_entropy", PAD)
    assert loss.item() >= math.log(20) - 0.05


def test_xavier_gives_each_matrix_its_own_bound(new_model: Callable[..., LanguageModel]) -> None:
    model = new_model(d_model=12, hidden=10, vocab_size=20)
    initialise(model, torch.Generator().manual_seed(0), "xavier")
    weights = dict(model.named_parameters())
    assert weights["blocks.0.attention.qkv.weight"].shape == (36, 12)
    bounds = {
        "embedding.weight": (6 / 32) ** 0.5,
        "blocks.0.attention.qkv.weight": (6 / 24) ** 0.5,  # three matrices of 12 × 12
        "blocks.0.feed_forward.w1.weight": (6 / 22) ** 0.5,
        "output.weight": (6 / 32) ** 0.5,
    }
    for name, bound in bounds.items():
        assert 0.9 * bound < float(weights[name].detach().abs().max()) <= bound, name
    assert all(not weight.any() for name, weight in weights.items() if name.endswith("bias"))
