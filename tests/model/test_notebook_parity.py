"""The notebook's network and loop, rebuilt from its equations, against ours with `notebook` chosen for everything."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from stages.model.language_model import LanguageModel, LanguageModelConfig, initialise, language_model_loss
from stages.optim.noam import NoamOptimizer
from stages.params import TrainParams
from stages.text.vocabulary import PAD, TextSettings, Vocabulary
from stages.training.batches import Epochs, Sentences
from stages.training.randomness import Dropout, generator
from stages.training.records import Update
from stages.training.session import Session
from tests.conftest import ROOT

D, HEADS, HIDDEN, P = 128, 5, 128, 0.3

# Sines in the even columns, cosines in the odd ones; the divisor's exponent is 2j/D for j = 0, 2, 4, …, D-2.
ANGLES = [[t / 10000 ** (2 * j / D) for j in range(0, D, 2)] for t in range(10)]
POSITIONS = torch.tensor([[f(angle) for angle in row for f in (math.sin, math.cos)] for row in ANGLES])


class NotebookNetwork(nn.Module):
    """One block of full-width heads, one head at a time, as the notebook computes it."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, D)
        self.q = nn.ModuleList(nn.Linear(D, D, bias=False) for _ in range(HEADS))
        self.k = nn.ModuleList(nn.Linear(D, D, bias=False) for _ in range(HEADS))
        self.v = nn.ModuleList(nn.Linear(D, D, bias=False) for _ in range(HEADS))
        self.concat = nn.Linear(HEADS * D, D)
        self.gain, self.shift = nn.Parameter(torch.ones(D)), nn.Parameter(torch.zeros(D))
        self.w1, self.w2 = nn.Linear(D, HIDDEN), nn.Linear(HIDDEN, D)
        self.output = nn.Linear(D, words)

    def norm(self, x: Tensor) -> Tensor:
        return self.gain * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6) + self.shift

    def forward(self, ids: Tensor, masks: list[Tensor]) -> Tensor:
        """Probabilities [T, V] of one sentence; `masks` are the three dropouts, in order."""
        length = len(ids)
        x = (math.sqrt(D) * self.embedding(ids) + POSITIONS[:length]) * masks[0]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        heads = []
        for q, k, v in zip(self.q, self.k, self.v, strict=True):
            scores = (q(x) @ k(x).T / math.sqrt(D)).masked_fill(future, float("-inf"))
            heads.append(scores.softmax(dim=1) @ v(x))
        h = self.concat(torch.cat(heads, dim=1))
        h1 = (x + self.norm(h)) * masks[1]
        out = self.w2(torch.relu(self.w1(h)))
        return self.output((h1 + self.norm(out)) * masks[2]).softmax(dim=1)

    def pairs(self, ours: LanguageModel) -> list[tuple[Tensor, Tensor]]:
        """Each of the notebook's parameters beside ours (a slice where ours holds several heads)."""
        block = ours.blocks[0]
        qkv = block.attention.qkv.weight.view(3, HEADS, D, D)
        found = [(self.embedding.weight, ours.embedding.weight)]
        for i, heads in enumerate((self.q, self.k, self.v)):
            found += [(head.weight, qkv[i, h]) for h, head in enumerate(heads)]
        for theirs, mine in (
            (self.concat, block.attention.out),
            (self.w1, block.feed_forward.w1),
            (self.w2, block.feed_forward.w2),
            (self.output, ours.output),
        ):
            found += [(theirs.weight, mine.weight), (theirs.bias, mine.bias)]
        return [*found, (self.gain, block.norm.gain), (self.shift, block.norm.bias)]

    def gradient_pairs(self, ours: LanguageModel) -> list[tuple[Tensor, Tensor]]:
        qkv = ours.blocks[0].attention.qkv.weight
        gradient = qkv.grad.view(3, HEADS, D, D)
        names = {id(parameter): parameter.grad for parameter in self.parameters()}
        found = []
        for theirs, mine in self.pairs(ours):
            if mine._base is qkv:
                offset = mine.storage_offset() // (D * D)
                found.append((names[id(theirs)], gradient[offset // HEADS, offset % HEADS]))
            else:
                found.append((names[id(theirs)], mine.grad))
        return found


class GivenMasks:
    """Our model's dropout, playing back masks."""

    def __init__(self, masks: list[Tensor]) -> None:
        self._masks = iter(masks)

    def __call__(self, x_BTD: Tensor) -> Tensor:
        return x_BTD * next(self._masks)


SENTENCES = [[1, 4, 5, 6, 7, 8, 2], [1, 7, 9, 10, 2], [1, 4, 9, 11, 12, 13, 2], [1, 7, 5, 6, 14, 2], [1, 4, 5, 6, 2]]
WORDS = 17


@pytest.fixture
def networks() -> tuple[NotebookNetwork, LanguageModel]:
    config = LanguageModelConfig(
        vocab_size=WORDS,
        d_model=D,
        layers=1,
        n_heads=HEADS,
        heads="full",
        hidden=HIDDEN,
        block="notebook",
        positions="notebook",
        activation="relu",
        tied_output=False,
    )
    ours = LanguageModel(config)
    initialise(ours, torch.Generator().manual_seed(0))
    notebook = NotebookNetwork(WORDS)
    with torch.no_grad():
        for theirs, mine in notebook.pairs(ours):
            theirs.copy_(mine)
    return notebook, ours


def masks(length: int, source: torch.Generator) -> list[Tensor]:
    return [torch.empty(length, D).bernoulli_(1 - P, generator=source) / (1 - P) for _ in range(3)]


def both_losses(notebook: NotebookNetwork, ours: LanguageModel, ids: list[int], drops: list[Tensor]) -> list[Tensor]:
    inputs, targets = torch.tensor(ids[:-1]), torch.tensor(ids[1:])
    # The notebook's CrossEntropyLoss applies its own softmax to what are probabilities already.
    theirs = nn.CrossEntropyLoss()(notebook(inputs, drops), targets)
    logits_BTV, _ = ours(inputs[None], GivenMasks(drops))
    return [theirs, language_model_loss(logits_BTV, targets[None], "notebook", ignore=PAD)]


def test_outputs_loss_and_gradients_are_the_notebooks(networks: tuple[NotebookNetwork, LanguageModel]) -> None:
    notebook, ours = networks
    source = torch.Generator().manual_seed(1)
    for ids in SENTENCES:
        drops = masks(len(ids) - 1, source)
        inputs = torch.tensor(ids[:-1])
        logits_BTV, _ = ours(inputs[None], GivenMasks(drops))
        torch.testing.assert_close(logits_BTV[0].softmax(dim=1), notebook(inputs, drops), rtol=1e-5, atol=1e-6)

        notebook.zero_grad()
        ours.zero_grad()
        theirs, mine = both_losses(notebook, ours, ids, drops)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-6)
        theirs.backward()
        mine.backward()
        for expected, found in notebook.gradient_pairs(ours):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_trajectory_over_fifty_updates_is_the_notebooks(networks: tuple[NotebookNetwork, LanguageModel]) -> None:
    notebook, ours = networks
    adam = torch.optim.Adam(notebook.parameters(), lr=0, betas=(0.9, 0.98), eps=1e-9)
    noam = NoamOptimizer(ours.parameters(), D, warmup=40000, decay=0)
    source = torch.Generator().manual_seed(2)
    for t in range(1, 51):
        ids = SENTENCES[t % len(SENTENCES)]
        theirs, mine = both_losses(notebook, ours, ids, masks(len(ids) - 1, source))
        assert mine.item() == pytest.approx(theirs.item(), abs=1e-6), f"update {t}"
        theirs.backward()
        mine.backward()
        for group in adam.param_groups:
            group["lr"] = D**-0.5 * min(t**-0.5, t * 40000**-1.5)
        adam.step()
        noam.step()
        adam.zero_grad()
        noam.zero_grad()
    for theirs, mine in notebook.pairs(ours):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=1e-5)


@pytest.mark.parametrize("updates", [225, pytest.param(900, marks=pytest.mark.slow)])
def test_trajectory_of_the_session_is_the_notebooks_on_its_corpus(updates: int) -> None:
    """The first of its 2 700 updates, sentences in the same order, the same values dropped."""
    lines = (ROOT / "data/raw/notebook.txt").read_text(encoding="utf-8").splitlines()
    vocabulary = Vocabulary.build(
        lines, TextSettings(lowercase=True), order="first_appearance", min_count=1, max_vocab=0
    )
    text = Sentences(vocabulary.flat_ids(lines))
    settings = TrainParams(loss="notebook", epochs=updates // 9, eval_every=updates)  # all else as the notebook has it
    session = Session(settings, len(vocabulary), {"train": text, "valid": Sentences(text.ids[:0])})
    notebook = NotebookNetwork(len(vocabulary))
    with torch.no_grad():
        for theirs, mine in notebook.pairs(session.model):
            theirs.copy_(mine)
    adam = torch.optim.Adam(notebook.parameters(), lr=0, betas=(0.9, 0.98), eps=1e-9)
    epochs, order = Epochs(text, "shuffled", 1, context=64), generator(0, "order")
    drop = Dropout(P, generator(0, "dropout"))
    ours = (record for record in session.records() if isinstance(record, Update))
    for epoch in (epochs.draw(order) for _ in range(updates // 9)):
        for i in range(epochs.per_epoch):
            update = next(ours)
            batch = epoch.batch(i)
            inputs, targets = batch.inputs_BT[0], batch.targets_BT[0]
            drops = torch.from_numpy(drop.masks(3, len(inputs), D))
            loss = nn.CrossEntropyLoss()(notebook(inputs, list(drops)), targets)
            assert update.loss == pytest.approx(loss.item(), abs=1e-5), f"update {update.step}"
            loss.backward()
            t = update.step
            adam.param_groups[0]["lr"] = D**-0.5 * min(t**-0.5, t * 40000**-1.5)
            assert update.lr == pytest.approx(adam.param_groups[0]["lr"], rel=1e-12)
            adam.step()
            adam.zero_grad()
    assert update.step == updates
    assert next(ours, None) is None
