"""Next words for a beginning of a sentence."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stages import files
from stages.errors import ArtifactError
from stages.model.language_model import LanguageModel
from stages.model.storage import load_model
from stages.params import TrainParams
from stages.text.vocabulary import BOS, Vocabulary


@dataclass(frozen=True)
class Prediction:
    """What follows a prompt.

    Attributes:
        prompt: the text as it was given.
        tokens: what the model read, from [bos] on; words that it does not know are [unk].
        unknown: those words, each once.
        next: next words with their probabilities, the most likely first; NaN from a model that diverged.
        dropped: tokens at the beginning of a long prompt that are outside the model's window and were not read.
    """

    prompt: str
    tokens: list[str]
    unknown: list[str]
    next: list[tuple[str, float]]
    dropped: int = 0

    @property
    def finite(self) -> bool:
        """False of a model that diverged."""
        return all(math.isfinite(probability) for _, probability in self.next)

    def to_dict(self) -> dict[str, Any]:
        return {
            "prompt": self.prompt,
            "tokens": self.tokens,
            "unknown": self.unknown,
            "dropped": self.dropped,
            "next": [
                {"word": word, "probability": probability if math.isfinite(probability) else None}
                for word, probability in self.next
            ],
        }


class Predictor:
    """A model with the vocabulary that it was trained on.

    Attributes:
        window: tokens that the model reads at once, [bos] included: no more than it was trained on.
        not_finite: one sentence for whoever asks a model whose numbers are not finite.
    """

    def __init__(self, model: LanguageModel, vocabulary: Vocabulary, about: Mapping[str, Any] | None = None) -> None:
        about = about or {}
        self.model = model
        self.vocabulary = vocabulary
        # As they are: an earlier version of this program may have had other keys.
        self.window = TrainParams.model_construct(**about.get("training", {})).window
        when = f"it diverged at update {about['diverged_at']} of its training; " if "diverged_at" in about else ""
        self.not_finite = f"the model's probabilities are not finite: {when}train it with a lower rate (or clip)"

    @classmethod
    def load(cls, folder: Path, vocab: Path | None = None) -> Predictor:
        """The model of a folder; its vocabulary is `vocab`, or vocab.json in the same folder.

        Raises:
            ArtifactError: something is missing or damaged, or the vocabulary is not the one the model was trained on.
        """
        vocab = vocab or folder / "vocab.json"
        model, content = load_model(folder)
        vocabulary = Vocabulary.load(vocab)
        if content.get("vocab_md5") != files.md5_file(vocab):
            raise ArtifactError(vocab, f"not the vocabulary that the model in {folder} was trained on; run `dvc repro`")
        return cls(model, vocabulary, content)

    def encode(self, text: str) -> list[int]:
        """[bos] and the tokens of `text`, all of them."""
        return [BOS, *self.vocabulary.encode(text)]

    def next_logits(self, ids: Sequence[int]) -> Tensor:
        """Logits [V] of what follows `ids`, of which the model reads the last `window`."""
        with torch.inference_mode():
            logits_BTV: Tensor = self.model(torch.tensor([ids[-self.window :]]))[0]
        return logits_BTV[0, -1].double()

    def next_words(self, text: str, top_k: int) -> Prediction:
        """The `top_k` most likely next words after `text` ('' continues [bos] alone); equal ones in order of id."""
        return self.explain(text, top_k)[0]

    def explain(self, text: str, top_k: int) -> tuple[Prediction, Tensor]:
        """As `next_words`, with the attention weights [L, H, T, T] of all layers over what the model read.

        Both come from one pass through the model.
        """
        everything = self.encode(text)
        ids = everything[-self.window :]
        with torch.inference_mode():
            logits_BTV, weights = self.model(torch.tensor([ids]), return_weights=True)
        probabilities = logits_BTV[0, -1].double().softmax(dim=0).tolist()
        best = sorted(range(len(probabilities)), key=lambda i: (-probabilities[i], i))[:top_k]
        prediction = Prediction(
            prompt=text,
            tokens=[self.vocabulary.label(i) for i in ids],
            unknown=self.vocabulary.unknown(text),
            next=[(self.vocabulary.label(i), probabilities[i]) for i in best],
            dropped=len(everything) - len(ids),
        )
        return prediction, torch.cat(weights)
