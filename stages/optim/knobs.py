"""What each optimiser is and which parameters it uses; which parameters go together, and which have no effect.

Without torch, since every stage checks all parameters. How an optimiser is made is in `stages.optim.registry`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from stages.optim.schedules import COUNTINGS, SCHEDULES

if TYPE_CHECKING:
    from stages.params import Params

EXTRA = "pytorch_optimizer"  # the package of `noam-lab[optimizers]`
FALLING = ("cosine", "linear", "wsd")  # to min_lr at the end of the run


@dataclass(frozen=True)
class Optimizer:
    """What there is to know of an optimiser without making it.

    Attributes:
        uses: which of beta1, beta2 and eps it has.
        decay: the forms of weight decay that it has, the usual one first.
        other_decay: why it has no other form.
        in_shape: it needs each weight in its shape; the others take all weights as one vector.
        extra: it comes from `EXTRA`.
        schedules: that go with it.
        other_schedules: why no other does.
        no_zero_beta1: it is undefined at beta1 = 0.
        by_element: it updates each number of a weight from that number's own past and gradient alone.
    """

    uses: tuple[str, ...]
    decay: tuple[str, ...]
    other_decay: str = ""
    in_shape: bool = False
    extra: bool = False
    schedules: tuple[str, ...] = SCHEDULES
    other_schedules: str = ""
    no_zero_beta1: bool = False
    by_element: bool = False


_ADAM, _BETAS = ("beta1", "beta2", "eps"), ("beta1", "beta2")
_L2, _DECOUPLED = ("l2", "decoupled"), ("decoupled", "l2")
_BESIDE = "its decay is beside the update"
_INSIDE = "torch adds its decay to the gradient"

OPTIMIZERS = {
    "adam": Optimizer(_ADAM, _L2, by_element=True),
    "adamw": Optimizer(_ADAM, ("decoupled",), "with L2 it is optimizer: adam", by_element=True),
    "nadam": Optimizer(_ADAM, _L2, by_element=True),
    "radam": Optimizer(_ADAM, _L2, by_element=True),
    "adafactor": Optimizer((), ("decoupled",), _BESIDE, in_shape=True),
    "muon": Optimizer(_ADAM, ("decoupled",), _BESIDE, in_shape=True),
    "sgd": Optimizer(("beta1",), ("l2",), _INSIDE, by_element=True),
    "adagrad": Optimizer(("eps",), ("l2",), _INSIDE, by_element=True),
    "lion": Optimizer(_BETAS, _DECOUPLED, extra=True, by_element=True),
    "soap": Optimizer(_ADAM, ("decoupled",), _BESIDE, in_shape=True, extra=True),
    "ademamix": Optimizer(_ADAM, _DECOUPLED, extra=True, no_zero_beta1=True, by_element=True),
    "prodigy": Optimizer(
        _ADAM,
        _DECOUPLED,
        extra=True,
        schedules=tuple(name for name in SCHEDULES if name != "noam"),
        other_schedules="it finds a rate of its own, which `lr` multiplies",
    ),
    "schedulefree": Optimizer(
        _ADAM,
        ("decoupled",),
        _BESIDE,
        extra=True,
        schedules=("constant", "none"),
        other_schedules="it averages the weights instead of letting the rate fall",
        no_zero_beta1=True,
    ),
}


def decay_form(optimizer: str, form: str) -> str:
    """'l2' or 'decoupled': what a `decay_form` means with an optimiser."""
    return OPTIMIZERS[optimizer].decay[0] if form == "usual" else form


def conflicts(params: Params) -> Iterator[tuple[str, str]]:
    """Keys whose values are impossible with the optimiser or the schedule, and what is expected."""
    kind = OPTIMIZERS[params.optimizer]
    chosen = f"with optimizer: {params.optimizer}"
    if kind.extra and find_spec(EXTRA) is None:
        yield "optimizer", f" = {params.optimizer}: needs the extra; pip install 'noam-lab[optimizers]'"
    if decay_form(params.optimizer, params.decay_form) not in kind.decay:
        yield (
            "decay_form",
            f" = {params.decay_form}: expected, {chosen}, usual or {kind.decay[0]} ({kind.other_decay})",
        )
    if params.schedule not in kind.schedules:
        names = " or ".join(", ".join(kind.schedules).rsplit(", ", 1))
        yield "schedule", f" = {params.schedule}: expected, {chosen}, {names} ({kind.other_schedules})"
    if kind.no_zero_beta1 and params.beta1 == 0:
        yield "beta1", f" = 0: expected, {chosen}, a number > 0"
    if params.schedule not in COUNTINGS[params.counting].schedules:
        known = [name for name, way in COUNTINGS.items() if params.schedule in way.schedules]
        names = " or ".join(", ".join(known).rsplit(", ", 1))
        has = ", ".join(COUNTINGS[params.counting].schedules)
        rule = f"with schedule: {params.schedule}, {names} ({params.counting} is how that toolkit counts {has})"
        yield "counting", f" = {params.counting}: expected, {rule}"
    if params.schedule in FALLING and params.min_lr > params.lr:
        yield "min_lr", f" = {params.min_lr:g}: expected at most lr = {params.lr:g}"


def unused_keys(params: Params) -> dict[str, str]:
    """The keys that no value of would change a result, given the others: what makes them so, as `key: value`, and why.

    Example:
        >>> unused_keys(Params(schedule="none"))["warmup"]
        'schedule: none, which has no ramp'
    """
    return {**_optimiser_keys(params), **_schedule_keys(params), **_text_keys(params)}


def unused(params: Params) -> dict[str, str]:
    """As `unused_keys`, of the keys that somebody changed: those that are not at their default."""
    fields = type(params).model_fields
    return {key: why for key, why in unused_keys(params).items() if getattr(params, key) != fields[key].default}


def note(params: Params) -> str:
    """The changed keys without effect, in one line; '' where there is none."""
    return "; ".join(
        f"{key} = {_shown(getattr(params, key))} has no effect with {why}" for key, why in unused(params).items()
    )


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _optimiser_keys(params: Params) -> dict[str, str]:
    kind = OPTIMIZERS[params.optimizer]
    found = {key: f"optimizer: {params.optimizer}, which has none" for key in _ADAM if key not in kind.uses}
    if not params.decay:
        found["decay_form"] = "decay: 0"
    elif len(kind.decay) == 1:
        found["decay_form"] = f"optimizer: {params.optimizer}, whose decay has one form"
    return found


def _schedule_keys(params: Params) -> dict[str, str]:
    name, way = params.schedule, COUNTINGS[params.counting]
    chosen = f"schedule: {name}"
    found = {}
    if name == "none":
        found["warmup"] = f"{chosen}, which has no ramp"
    if name == "noam" and not way.scales_lr:
        found["lr"] = f"{chosen}, whose peak follows from d_model, warmup and factor"
    if name != "noam":
        found["factor"] = f"{chosen}, whose peak is `lr`"
    if name != "wsd":
        found["decay_fraction"] = f"{chosen}, which does not wait to fall"
    if name not in FALLING:
        found["min_lr"] = f"{chosen}, which does not end at a rate of its own"
    if name not in ("noam", "inverse_sqrt"):
        found["counting"] = f"{chosen}, which all count alike"
    return found


def _text_keys(params: Params) -> dict[str, str]:
    """Of the corpus, the vocabulary and the batches."""
    found = {}
    drawn = params.corpus == "grammar"
    for key in ("encoding", "text_column", "text_field") if drawn else ():
        found[key] = "corpus: grammar, which is not read"
    for key in () if drawn else ("grammar_sentences", "grammar_seed", "grammar_depth"):
        found[key] = f"corpus: {params.corpus}, which is not drawn"
    if not params.valid_fraction and not params.test_fraction:
        found["split_seed"] = "valid_fraction: 0 and test_fraction: 0"
    elif params.unit == "stream":
        found["split_seed"] = "unit: stream, whose end is held out"
    if params.tokenizer in ("byte", "bpe", "unigram"):
        found["vocab_order"] = f"tokenizer: {params.tokenizer}, whose pieces have an order of their own"
    for key in ("min_count", "max_vocab") if params.tokenizer == "byte" else ():
        found[key] = "tokenizer: byte, which keeps all bytes"
    if params.batches == "packed":
        found["max_length"] = "batches: packed, whose windows have `context` tokens"
    else:
        found["context"] = f"batches: {params.batches}"
    if params.replicas == 1:
        found["workers"] = "replicas: 1"
    return found
