"""What the benchmarks measure against is what it says, and their arithmetic is right."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

from stages.model.language_model import LanguageModel, LanguageModelConfig, initialise
from stages.training.batches import Sentences
from tests.benchmarks import bench, matmuls, nanogpt_peer, notebook_peer, texts
from tests.benchmarks.contest import Contender, ContenderError, Entry, Spread, Turn, paired_ratios


def mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))


def test_the_notebooks_text_has_15_words_and_48_targets() -> None:
    sentences, vocab_size = notebook_peer.read_sentences(texts.TOY)
    assert (len(sentences), vocab_size, sum(len(ids) - 1 for ids in sentences)) == (9, 15, 48)
    assert sentences[0] == [0, 2, 3, 4, 5, 6, 1]


def test_the_notebooks_loop_learns_as_far_as_its_loss_lets_it() -> None:
    updates = list(islice(notebook_peer.train(texts.TOY, warmup=100), 108))
    assert [count for count, _ in updates[:9]] != [count for count, _ in updates[9:18]]  # another order each epoch
    assert sum(count for count, _ in updates[:9]) == 48
    assert mean(loss for _, loss in updates[:9]) == pytest.approx(math.log(15), abs=0.2)
    assert 1.8165 < mean(loss for _, loss in updates[-18:]) < 2.65


def test_the_notebooks_network_is_ours_with_notebook_chosen_for_everything() -> None:
    torch.manual_seed(0)
    theirs = notebook_peer.Network(15).eval()
    config = LanguageModelConfig(
        vocab_size=15,
        d_model=notebook_peer.D,
        layers=1,
        n_heads=notebook_peer.HEADS,
        heads="full",
        hidden=notebook_peer.HIDDEN,
        block="notebook",
        positions="notebook",
        activation="relu",
        tied_output=False,
    )
    ours = LanguageModel(config)
    initialise(ours, torch.Generator().manual_seed(0))
    heads = theirs.attention.heads
    same = {
        "embedding": theirs.encoding.embedding,
        "blocks.0.attention.out": theirs.attention.out,
        "blocks.0.norm": theirs.norm,
        "blocks.0.feed_forward": theirs.feed_forward,
        "output": theirs.output,
    }
    weights = {f"{name}.{key}": value for name, part in same.items() for key, value in part.state_dict().items()}
    weights["blocks.0.attention.qkv.weight"] = torch.cat(
        [getattr(head, part).weight for part in "qkv" for head in heads]
    )
    ours.load_state_dict(weights)
    sentences, _ = notebook_peer.read_sentences(texts.TOY)
    for ids in sentences:
        inputs = torch.tensor(ids[:-1])
        logits_BTV, _ = ours(inputs[None])
        torch.testing.assert_close(logits_BTV[0].softmax(dim=1), theirs(inputs), rtol=0, atol=5e-6)


@pytest.fixture
def characters(tmp_path: Path) -> Path:
    texts.write_characters(tmp_path, texts.made_text(20_000))
    return tmp_path


def test_nanogpts_loop_learns(characters: Path) -> None:
    settings = nanogpt_peer.Settings(layers=1, warmup=5, context=16)
    vocab_size = texts.count_characters(characters)
    updates = list(islice(nanogpt_peer.train(characters / texts.STREAM, vocab_size, settings), 101))
    assert {count for count, _ in updates} == {12 * 16}
    losses = [loss for _, loss in updates if loss is not None]
    assert len(losses) == 11
    assert losses[0] == pytest.approx(math.log(vocab_size), abs=0.1)
    assert losses[-1] < losses[0] - 0.5


def test_nanogpts_network_sees_no_later_token_and_shares_its_embedding() -> None:
    settings = nanogpt_peer.Settings()
    model = nanogpt_peer.GPT(65, settings)
    assert sum(parameter.numel() for parameter in model.parameters()) == (65 + 64 + 4 * (12 * 128 + 2) + 1) * 128
    ids = torch.arange(8)[None]
    changed = ids.clone()
    changed[0, -1] = 60
    logits = {}
    model.output.register_forward_hook(lambda _module, _inputs, output: logits.setdefault(len(logits), output))
    model(ids, ids)
    model(changed, ids)
    assert torch.equal(logits[0][0, :-1], logits[1][0, :-1])
    assert not torch.equal(logits[0][0, -1], logits[1][0, -1])


def test_nanogpts_rate() -> None:
    settings = nanogpt_peer.Settings()
    rates = [nanogpt_peer.rate(update, settings) for update in (0, 100, 1050, 2000, 3000)]
    assert rates == pytest.approx([1e-3 / 101, 1e-3, 5.5e-4, 1e-4, 1e-4])


def test_the_products_are_three_of_each_of_the_forward_pass() -> None:
    sizes = matmuls.Sizes(layers=2, d_model=8, n_heads=2, head_width=4, hidden=16, vocab_size=5)
    products = matmuls.forward_products(sizes, windows=3, length=6)
    assert len(products) == 2 * 6 + 1
    assert matmuls.Product(6, 4, 6, count=6) in products
    assert list(islice(matmuls.run(sizes, 3, [6, 2]), 3)) == [18, 6, 18]


def test_characters_are_sentences_for_us_and_one_stream_for_the_peer(tmp_path: Path) -> None:
    texts.write_characters(tmp_path, "ab\n\nb")
    assert np.load(tmp_path / texts.SENTENCES).tolist() == [1, 5, 6, 2, 1, 6, 2]
    assert np.fromfile(tmp_path / texts.STREAM, dtype=np.uint16).tolist() == [1, 2, 0, 0, 2]
    assert texts.count_characters(tmp_path) == 3


def test_a_large_text_is_sentences(tmp_path: Path) -> None:
    count = texts.write_large(tmp_path, 10_000)
    sentences = Sentences.load(tmp_path / texts.LARGE)
    assert (len(sentences), len(sentences.ids)) == (10_000 // 108, count)
    assert len(texts.made_text(5000)) == 5000


def turns(*seconds: float, updates: int = 1) -> list[Turn]:
    return [Turn(wall=wall, cpu=2 * wall, updates=updates, tokens=10 * updates) for wall in seconds]


def test_ratios_are_taken_within_each_round_and_for_an_update() -> None:
    # The machine becomes ten times slower after two rounds; the ratio is 2 in each of them.
    base, other = turns(2, 2, 20, 20, 20, updates=1), turns(3, 3, 30, 30, 30, updates=3)
    assert paired_ratios(base, other) == pytest.approx([2, 2, 2, 2, 2])
    assert paired_ratios(base, [Turn(1, 8, 1, 1)] * 5, "cpu") == pytest.approx([0.5, 0.5, 5, 5, 5])
    with pytest.raises(ValueError, match="zip"):
        paired_ratios(base, other[:-1])


def test_medians_between_quartiles() -> None:
    assert Spread.of([5, 1, 2, 4, 3]) == Spread(3, 2, 4)
    assert Spread.of([7]) == Spread(7, 7, 7)


def test_a_report_as_a_table() -> None:
    report = bench.Report("Title", "a", {"a": turns(2, 4), "b": turns(1, 1)}, notes=["a note"], failures={"c": "why"})
    assert bench.markdown(report).splitlines() == [
        "### Title",
        "",
        "| | ms an update | CPU ms an update | tokens a second | times as fast (quartiles) | CPU |",
        "|---|---|---|---|---|---|",
        "| a | 3000.00 | 6000.00 | 4 | 1 | 1 |",
        "| b | 1000.00 | 2000.00 | 10 | 3.00 (2.50–3.50) | 3.00 |",
        "",
        "- a note",
        "- c: could not run (why)",
    ]
    assert bench.summary(report)["b"]["times_faster"] == {"median": 3, "low": 2.5, "high": 3.5}


def test_a_contender_works_when_it_is_asked_to_and_says_why_it_cannot(capsys: pytest.CaptureFixture[str]) -> None:
    with Contender(Entry("toy products", pieces=9, warmup=9)) as contender:
        assert contender.wait_until_ready() > 0
        turn = contender.turn(9)
        assert (turn.updates, turn.tokens) == (9, 48)
        assert turn.wall > 0
        assert turn.peak_bytes > 2**20
        with pytest.raises(ContenderError, match="ValueError: "):
            contender.turn(-1)
    assert "Traceback" in capsys.readouterr().err
