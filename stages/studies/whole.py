"""A study as a whole: run what is missing, choose what is to be tuned, answer the question."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import pandas as pd

from stages import paths
from stages.analysis.question import Comparison, Question
from stages.errors import StudyError
from stages.studies import done, workspace
from stages.studies.plan import Plan, Variant, experiment_name, question_of

if TYPE_CHECKING:
    from stages.studies.collect import Tables
    from stages.studies.jobs import Account, Say

TUNING = "tuning"  # end of the names of experiments that were trials


@dataclass(frozen=True)
class Answer:
    """What a study has come to.

    Attributes:
        comparison: of the variants that are reported.
        tables: that it was made from.
        trials: what the tuning was made from; None without tuning.
        variants: that are reported: all, or those that tuning chose.
    """

    comparison: Comparison
    tables: Tables
    trials: Tables | None
    variants: list[Variant]


def run(plan: Plan, *, say: Say, workers: int = 0, on: str = "local", slurm: Sequence[str] = ()) -> Account:
    """Run what has not been run: with tuning first the trials, then what they chose with the reported seeds.

    Args:
        plan: the study.
        say: is told what happens, a line each.
        workers: processes at once, here; 0 for one a core.
        on: where: `local`, `slurm`, or the address of a scheduler of Dask.
        slurm: options of its jobs, `KEY=VALUE` each.

    Raises:
        StudyError: there is no such place.
    """
    run_variants = _runner(on, slurm, workers, say)
    study = plan.study
    if study.tuning is None:
        return run_variants(plan, plan.variants, study.seeds, say=say)
    say(f"tuning {', '.join(study.tuning.over)} on seeds {_range(study.tuning.seeds)}")
    account = run_variants(plan, plan.variants, study.tuning.seeds, suffix=TUNING, say=say)
    chosen = choose(plan, _tables(plan, plan.variants, study.tuning.seeds).runs)
    say(f"chosen: {'; '.join(variant.name for variant in chosen)}")
    account.add(run_variants(plan, chosen, study.seeds, say=say))
    return account


def _runner(on: str, slurm: Sequence[str], workers: int, say: Say) -> Callable[..., Account]:
    """What runs variants at a place."""
    if on == "local":
        from stages.studies.runner import run_variants  # loads torch

        return partial(run_variants, workers=workers)
    from stages.studies.distribute import run_variants_on

    if on == "slurm":
        from stages.studies.engines import slurm as jobs

        options = jobs.options_of(list(slurm))
        return partial(run_variants_on, lambda: jobs.Slurm(paths.run_state() / "slurm", options))
    if re.fullmatch(r"(dask|tls)://[^/]+:\d+", on):
        from stages.studies.engines.dask import Dask

        return partial(run_variants_on, lambda: Dask(on, say))
    raise StudyError("command line", f"--on {on}: expected local, slurm, dask://HOST:PORT or tls://HOST:PORT")


def answer(plan: Plan, command: str) -> Answer:
    """Compare what has been run.

    Raises:
        StudyError: nothing has been run, or what the study asks cannot be compared.
        ArtifactError: DVC's cache does not have the results of an experiment.
    """
    from stages.analysis.comparison import compare
    from stages.studies.expectations import check

    study = plan.study
    question = question_of(plan, command)
    variants, trials = plan.variants, None
    if study.tuning is not None:
        trials = _tables(plan, plan.variants, study.tuning.seeds)
        variants = choose(plan, trials.runs)
        question = _tuned(question, plan, variants, trials.runs)
    tables = _tables(plan, variants, study.seeds)
    if tables.runs["value"].isna().all():
        raise StudyError(plan.path, f"no run has a value yet; `noam study run {plan.path}`")
    comparison = compare(tables.runs, question)
    expectations = check(plan, comparison, tables.runs)
    return Answer(dataclasses.replace(comparison, expectations=expectations), tables, trials, variants)


def choose(plan: Plan, trials: pd.DataFrame) -> list[Variant]:
    """Of each group that differs in the tuned factors alone, the variant with the best mean over the trials.

    One with a run that diverged or is missing is chosen only where all are such; then the one with the most values.

    Raises:
        StudyError: a group has no run with a value.
    """
    if plan.study.tuning is None:
        return plan.variants
    sign = 1 if plan.study.direction == "lower" else -1
    values = trials.groupby("variant")["value"]
    standing = pd.DataFrame({"gone": values.agg(lambda one: one.isna().sum()), "mean": sign * values.mean()})
    chosen = []
    for levels, group in plan.groups(plan.study.tuning.over).items():
        candidates = standing.loc[[one.name for one in group]].dropna(subset=["mean"])
        if candidates.empty:
            raise StudyError(plan.path, f"no trial of {', '.join(levels)} has a value: it cannot be tuned")
        best = candidates.sort_values(["gone", "mean"], kind="stable").index[0]
        chosen.append(next(one for one in group if one.name == best))
    return chosen


def members(plan: Plan, variants: Sequence[Variant]) -> list[dict[str, object]]:
    """Of each reported variant its experiment, and the fingerprint of its results, by which MLflow's runs are found."""
    from stages.tracking.fingerprint import fingerprint_of_revision

    found: list[dict[str, object]] = []
    for variant in variants:
        made = done.find(variant, plan.study.seeds)
        name = experiment_name(plan.study.name, variant)
        if made is not None:
            found.append(
                {
                    "variant": variant.name,
                    "levels": variant.levels,
                    "experiment": workspace.name_of(made.commit, made.baseline, name) or name,
                    "fingerprint": fingerprint_of_revision(paths.main_root(), made.commit),
                    "seeds": list(plan.study.seeds),
                }
            )
    return found


def _tables(plan: Plan, variants: Sequence[Variant], seeds: Sequence[int]) -> Tables:
    from stages.studies.collect import Source, tables_of

    sources = []
    for variant in variants:
        made = done.find(variant, seeds)
        sources.append(Source(variant.name, variant.levels, seeds, made.commit if made is not None else ""))
    return tables_of(sources, plan.study.metric, plan.study.target)


def _tuned(question: Question, plan: Plan, chosen: Sequence[Variant], trials: pd.DataFrame) -> Question:
    """The question for the chosen variants: their baseline, the trials of each, and who is at the edge of its grid."""
    over = question.tuned
    baseline = [one.name for one in plan.matching(plan.study.baseline) if one in chosen]
    if len(baseline) != 1:
        raise StudyError(plan.path, f"baseline: {len(baseline)} of the chosen variants; expected one")
    spent = {}
    for levels, group in plan.groups(over).items():
        runs = trials[trials["variant"].isin([one.name for one in group])]
        spent[", ".join(levels)] = int(runs["value"].notna().sum() + runs["diverged_at"].notna().sum())
    return dataclasses.replace(
        question,
        baseline=baseline[0],
        trials=spent,
        factors={
            key: [one for one in labels if any(v.levels[key] == one for v in chosen)]
            for key, labels in question.factors.items()
        },
        at_edge=[one.name for one in chosen if _at_edge(one, question)],
    )


def _at_edge(variant: Variant, question: Question) -> bool:
    """The level that was chosen is the first or the last of its grid."""
    for factor in question.tuned:
        numbers = question.numbers.get(factor, {})
        ordered = sorted(numbers, key=lambda label: numbers[label])
        if len(ordered) > 1 and variant.levels[factor] in (ordered[0], ordered[-1]):
            return True
    return False


def _range(seeds: Sequence[int]) -> str:
    return f"{seeds[0]}–{seeds[-1]}" if len(seeds) > 1 else str(seeds[0])
