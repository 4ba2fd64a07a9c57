"""Next words for a beginning of a sentence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from stages import files
from stages.errors import ArtifactError
from stages.model.language_model import LanguageModel
from stages.model.storage import load_model
from stages.text.vocabulary import BOS, Vocabulary


@dataclass(frozen=True)
class Prediction:
    """What follows a prompt.

    Attributes:
        prompt: the text as it was given.
        tokens: what the model read, from [bos] on; words that it does not know are [unk].
        unknown: those words, each once.
        next: next words with their probabilities, the most likely first; NaN from a model that diverged.
    """

    prompt: str
    tokens: list[str]
    unknown: list[str]
    next: list[tuple[str, float]]

    def to_dict(self) -> dict[str, Any]:
        return {
            "prompt": self.prompt,
            "tokens": self.tokens,
            "unknown": self.unknown,
            "next": [
                {"word": word, "probability": probability if math.isfinite(probability) else None}
                for word, probability in self.next
            ],
        }


class Predictor:
    """A model with the vocabulary that it was trained on."""

    def __init__(self, model: LanguageModel, vocabulary: Vocabulary) -> None:
        self.model = model
        self.vocabulary = vocabulary

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
        return cls(model, vocabulary)

    def next_words(self, text: str, top_k: int) -> Prediction:
        """The `top_k` most likely next words after `text` ('' continues [bos] alone); equal ones in order of id."""
        return self.explain(text, top_k)[0]

    def explain(self, text: str, top_k: int) -> tuple[Prediction, torch.Tensor]:
        """As `next_words`, with the attention weights [L, H, T, T] of all layers over [bos] and the words of `text`."""
        ids = [BOS, *self.vocabulary.encode(text)]
        with torch.inference_mode():
            logits_BTV, weights = self.model(torch.tensor([ids]), return_weights=True)
        probabilities = logits_BTV[0, -1].double().softmax(dim=0).tolist()
        best = sorted(range(len(probabilities)), key=lambda i: (-probabilities[i], i))[:top_k]
        prediction = Prediction(
            prompt=text,
            tokens=[self.vocabulary.label(i) for i in ids],
            unknown=self.vocabulary.unknown(text),
            next=[(self.vocabulary.label(i), probabilities[i]) for i in best],
        )
        return prediction, torch.cat(weights)
