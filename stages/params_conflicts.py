"""Values of params.yaml that are fine alone and impossible together; of an optimiser they are in `stages.optim.knobs`.

Without torch, since every stage checks all parameters. What depends on the machine, such as a GPU that is not there, is
checked when training starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stages.optim import knobs

if TYPE_CHECKING:
    from stages.params import Params

Conflict = tuple[str, str]


def conflicts(params: Params) -> list[Conflict]:
    """The keys concerned, and for each its value and what is expected."""
    return [*_of_model_and_text(params), *_of_computing(params), *knobs.conflicts(params)]


def _of_model_and_text(params: Params) -> Iterator[Conflict]:
    if params.d_model % 2:
        yield "d_model", f" = {params.d_model}: expected an even number (half the columns are sines)"
    if params.heads == "split" and params.d_model % params.n_heads:
        rule = f"with heads: split, a divisor of d_model = {params.d_model}"
        yield "n_heads", f" = {params.n_heads}: expected, {rule}"
    if params.tokenizer in ("bpe", "unigram") and params.max_vocab <= 256:
        rule = f"with tokenizer: {params.tokenizer}, more than 256 (the bytes and the pieces to be learned)"
        yield "max_vocab", f" = {params.max_vocab}: expected, {rule}"
    if params.seed + params.replicas > 2**32:
        yield "replicas", f" = {params.replicas}: expected seeds below 2^32 (seed = {params.seed})"
    if params.valid_fraction + params.test_fraction >= 1:
        rule = f"less than 1 together with test_fraction = {params.test_fraction:g}"
        yield "valid_fraction", f" = {params.valid_fraction:g}: expected {rule}"


def _of_computing(params: Params) -> Iterator[Conflict]:
    if params.compile and params.batches != "packed":
        yield "compile", " = true: expected false unless batches: packed (each length would be compiled)"
    if params.compile and params.numerics != "native":
        yield "compile", " = true: expected false unless numerics: native (the compiler chooses instructions)"
    if params.shards > params.batch_size:
        yield "shards", f" = {params.shards}: expected at most batch_size = {params.batch_size}"
    if params.processes > params.batch_size:
        rule = f"at most batch_size = {params.batch_size} (each takes rows of every batch)"
        yield "processes", f" = {params.processes}: expected {rule}"
    if params.processes > 1:
        yield from _of_processes(params)
    elif params.fsdp:
        yield "fsdp", " = true: expected false unless processes > 1 (there is nobody to share with)"
    if params.fsdp and not knobs.OPTIMIZERS[params.optimizer].by_element:
        names = " or ".join(
            ", ".join(name for name, kind in knobs.OPTIMIZERS.items() if kind.by_element).rsplit(", ", 1)
        )
        rule = f"with fsdp: true, {names} (the others need more of a weight than the part that a process has)"
        yield "optimizer", f" = {params.optimizer}: expected, {rule}"
    if params.device != "cpu":
        where = f"unless device: cpu (it is {params.device})"
        if params.shards > 1:
            yield "shards", f" = {params.shards}: expected 1 {where}: shards are threads of a processor"
        if params.compile:
            yield "compile", f" = true: expected false {where}"
    if params.precision == "bf16":
        if params.numerics != "native":
            rule = "fp32 unless numerics: native (portable turns off the instructions of a processor that are for bf16)"
            yield "precision", f" = bf16: expected {rule}"
        if params.compile:
            yield "compile", " = true: expected false with precision: bf16"


def _of_processes(params: Params) -> Iterator[Conflict]:
    several = f"with processes = {params.processes}"
    if params.replicas > 1:
        yield "replicas", f" = {params.replicas}: expected, {several}, 1 (a replica is a process of its own)"
    if params.shards > 1:
        yield "shards", f" = {params.shards}: expected, {several}, 1 (each process computes its part with one thread)"
    if params.compile:
        rule = f"{several}, false (what is compiled writes gradients past the hooks that add them up)"
        yield "compile", f" = true: expected, {rule}"
    if params.device == "mps":
        yield "device", f" = mps: expected, {several}, cpu or cuda (torch's process groups know no other)"
