"""How far a study is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stages.execution import Execution
from stages.studies import done, workspace
from stages.studies.plan import Plan, Variant, experiment_name
from stages.studies.whole import TUNING


def lines(plan: Plan) -> Iterator[str]:
    """A line a variant: its experiment, what failed, or how many of its runs are over."""
    study = plan.study
    under_way = _under_way()
    if study.tuning is not None:
        yield "trials:"
        yield from _of(plan, plan.variants, study.tuning.seeds, TUNING, under_way)
        yield "reported:"
    known = [one for one in plan.variants if study.tuning is None or done.find(one, study.seeds) is not None]
    yield from _of(plan, known, study.seeds, "", under_way)
    if study.tuning is not None and not known:
        yield "  to be chosen by the trials"


def _of(
    plan: Plan, variants: Sequence[Variant], seeds: Sequence[int], suffix: str, under_way: dict[str, Execution]
) -> Iterator[str]:
    width = max((len(one.name) for one in variants), default=0)
    finished = 0
    for variant in variants:
        name = experiment_name(plan.study.name, variant, suffix)
        made = done.find(variant, seeds)
        problems = done.failure(variant, seeds)
        finished += made is not None
        if made is not None:
            listed = workspace.name_of(made.commit, made.baseline, name)
            called = f"experiment {listed}" if listed else "its experiment was removed, `noam study run` lists it again"
            strange = f"; {made.note}" if made.note else ""
            state = f"done: {called} ({made.commit[:7]}), {len(seeds)} seeds{strange}"
        elif sent := done.sent(variant, seeds):
            state = f"under way: {sent}"
        elif name in under_way:
            replicas = under_way[name].replicas()
            state = f"under way: {sum(one.ended() for one in replicas)} of {len(seeds)} seeds are over"
        elif problems:
            state = f"failed: {done.in_words(problems)}"
        else:
            state = "waiting"
        yield f"  {variant.name:<{width}}  {state}"
    yield f"  {finished} of {len(variants)} variants are done"


def _under_way() -> dict[str, Execution]:
    """Executions that a living process works on, by their experiments' names."""
    found = {}
    for execution in Execution.all():
        record = execution.record
        if record.experiment and not record.parent and not execution.ended() and execution.alive():
            found[record.experiment] = execution
    return found
