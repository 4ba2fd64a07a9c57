"""Text that a model goes on with, one token after the other.

Sampling follows the usual order: temperature, then the k most likely tokens (Fan, Lewis, Dauphin 2018, "Hierarchical
Neural Story Generation", section 5), then the smallest set with at least the probability p (Holtzman et al. 2020, "The
Curious Case of Neural Text Degeneration", section 3.1). A token is drawn by inverting the distribution function at one
uniform number, so that a seed alone decides the text.

Shapes: V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from stages.errors import LabError
from stages.model.predict import Predictor
from stages.text.vocabulary import BOS, EOS, PAD, UNK, Vocabulary

NEVER = (PAD, BOS, UNK)  # ids that are never generated
_HALF = "\ufffd"  # what a character decodes to as long as only some of its bytes are there


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: divides the logits; 0 always takes the most likely token (of equal ones the lowest id).
        top_k: choose among so many of the most likely tokens; None for all.
        top_p: choose among the fewest most likely tokens that have this probability together, in (0, 1].
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def distribution(self, logits_V: Tensor) -> tuple[Tensor, Tensor]:
        """Ids that can be drawn, the most likely first (equal ones in order of id), and their probabilities, float64.

        Raises:
            ValueError: a logit is not finite.
        """
        if not bool(torch.isfinite(logits_V).all()):
            raise ValueError("logits are not finite")
        logits_V = logits_V.double().clone()
        logits_V[list(NEVER)] = float("-inf")
        sorted_V, ids_V = torch.sort(logits_V, descending=True, stable=True)
        kept = len(ids_V) - len(NEVER)
        kept = 1 if self.temperature == 0 else min(kept, self.top_k or kept)
        scaled_K = (sorted_V[:kept] - sorted_V[0]) / (self.temperature or 1.0)  # from 0 down: exp cannot overflow
        probability_K = scaled_K.softmax(dim=0)
        before_K = probability_K.cumsum(dim=0) - probability_K
        probability_K = probability_K[before_K < self.top_p]  # the first one always stays
        return ids_V[: len(probability_K)], probability_K / probability_K.sum()

    def draw(self, logits_V: Tensor, source: torch.Generator) -> int:
        """One id; all that is random in it comes from `source`."""
        ids_K, probability_K = self.distribution(logits_V)
        if len(ids_K) == 1:
            return int(ids_K[0])
        place = torch.rand(1, generator=source, dtype=torch.float64)
        chosen = torch.searchsorted(probability_K.cumsum(dim=0), place, right=True).clamp(max=len(ids_K) - 1)
        return int(ids_K[chosen])


def generate(
    predictor: Predictor,
    ids: Iterable[int],
    sampling: Sampling,
    seed: int,
    max_tokens: int,
    on_drop: Callable[[], None] = lambda: None,
) -> Iterator[int]:
    """The ids that follow `ids`, up to and without [eos], at most `max_tokens` of them.

    Args:
        predictor: the model, which reads the last `predictor.window` tokens at each step.
        ids: the prompt, from [bos] on.
        sampling: how each is chosen.
        seed: of the random numbers; the same seed gives the same text.
        max_tokens: to generate, at most. An [eos] that would be the next one is not waited for.
        on_drop: called once, when the text has outgrown the window and its first tokens are no longer read.

    Raises:
        LabError: the model's numbers are not finite.
    """
    source = torch.Generator().manual_seed(seed)
    ids, told = list(ids), False
    for _ in range(max_tokens):
        if len(ids) > predictor.window and not told:
            on_drop()
            told = True
        try:
            chosen = sampling.draw(predictor.next_logits(ids), source)
        except ValueError:
            raise LabError(predictor.not_finite) from None
        if chosen == EOS:
            return
        ids.append(chosen)
        yield chosen


def growth(vocabulary: Vocabulary, prompt: Iterable[int], generated: Iterable[int]) -> Iterator[str]:
    """What each generated token adds to the text, as soon as it can be shown; joined it is the text behind the prompt.

    A token may add nothing yet, as the first byte of a character does; what is left is given at the end.
    """
    ids = list(prompt)
    shown = vocabulary.decode(ids)
    text = shown
    for i in generated:
        ids.append(i)
        text = vocabulary.decode(ids)
        whole = text.rstrip(_HALF)
        if len(whole) > len(shown) and whole.startswith(shown):
            yield whole[len(shown) :]
            shown = whole
    if len(text) > len(shown):
        yield text[len(shown) :]
