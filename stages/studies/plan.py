"""A study → its variants, each with all its parameters, and what has to be run for it."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages import files, paths
from stages.analysis.question import Question
from stages.errors import ParamError, StudyError, nearest
from stages.optim.knobs import unused_keys
from stages.params import WITHOUT_EFFECT, Params, parse_params, read_params_file
from stages.studies.spec import Selector, Study, label_of
from stages.studies.workspace import commit_of

CODE = "code"  # beside the parameters: a revision of git
KEYS = (CODE, *Params.model_fields)
_NOT_FOR_STUDIES = {"seed": "seeds", "replicas": "seeds", "workers": "--workers"}
# Of `stages.analysis.measures` and `stages.evaluate`, which load torch.
MEASURES = ("loss", "perplexity", "bits_per_character", "bits_per_byte", "accuracy", "accuracy_top5", "ece", "gain")
TRUTH = ("excess", "excess_error", "agreement_number", "agreement_gender")
_RATES = ("lr", "factor")  # over which there is a sensitivity
_PLAIN = re.compile(
    r"[A-Za-z0-9]+([._][A-Za-z0-9]+)*"
)  # a label of which an experiment's name loses nothing that tells


@dataclass(frozen=True)
class Variant:
    """One combination of levels.

    Attributes:
        name: such as 'warmup=400, loss=notebook'.
        levels: label of each factor; of a listed variant {'variant': name}.
        params: all parameters, with `seed` 0 and `replicas` 1: the seeds come with the run.
        code: revision of git whose code it runs; '' for that of the workspace.
        commit: of that revision.
    """

    name: str
    levels: dict[str, str]
    params: Params
    code: str = ""
    commit: str = ""

    def with_seeds(self, seeds: Sequence[int]) -> Params:
        """The parameters of the experiment that runs it with these seeds, which follow each other."""
        return parse_params(self.params.model_dump() | {"seed": seeds[0], "replicas": len(seeds)})


@dataclass(frozen=True)
class Plan:
    """A study, ready to be run.

    Attributes:
        study: as it was read.
        path: its file.
        variants: in the order of the grid.
        factors: labels of each factor's levels, as far as they occur.
        left_out: what is not run since its corpus is not there, with the reason.
        absent: the levels of these.
        notes: what somebody should know before it is run.
    """

    study: Study
    path: Path
    variants: list[Variant]
    factors: dict[str, list[str]]
    left_out: list[str] = field(default_factory=list)
    absent: list[dict[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def variant(self, selector: Selector | str, place: str = "variant") -> Variant:
        """The one variant that a selector means.

        Raises:
            StudyError: it is none, or more than one.
        """
        found = self.matching(selector, place)
        if len(found) != 1:
            shown = selector if isinstance(selector, str) else _shown(selector)
            raise StudyError(self.path, f"{place} = {shown}: {_several(found)}; expected one")
        return found[0]

    def matching(self, selector: Selector | str, place: str = "variant") -> list[Variant]:
        """The variants with these levels; `place` is where the study file has them.

        Raises:
            StudyError: no such factor, or level of it.
        """
        if isinstance(selector, str):
            if "variant" not in self.factors:
                expected = ", ".join(f"{factor}: {labels[0]}" for factor, labels in self.factors.items())
                raise StudyError(
                    self.path, f"{place} = {selector}: expected a level of each factor, such as {{{expected}}}"
                )
            selector = {"variant": selector}
        for factor, label in selector.items():
            if factor not in self.factors:
                raise StudyError(self.path, f"{place}.{factor}: no such factor{nearest(factor, self.factors)}")
            known = self.factors[factor]
            if label not in known and all(levels[factor] != label for levels in self.absent):
                raise StudyError(self.path, f"{place}.{factor} = {label}: expected {' or '.join(known)}")
        return [one for one in self.variants if _has(one.levels, selector)]

    def groups(self, over: Sequence[str]) -> dict[tuple[str, ...], list[Variant]]:
        """The variants that differ in these factors alone, by the labels of the others."""
        kept = [factor for factor in self.factors if factor not in over]
        found: dict[tuple[str, ...], list[Variant]] = {}
        for one in self.variants:
            found.setdefault(tuple(one.levels[factor] for factor in kept), []).append(one)
        return found


def make_plan(study: Study, path: Path) -> Plan:
    """The variants of a study, all checked before anything is run.

    Raises:
        StudyError: a parameter, factor or selector that does not fit; two variants that are the same.
    """
    base = _start(study) | study.base
    _no_forbidden(study.base, path, "base")
    variants: list[Variant] = []
    twins: dict[str, str] = {}
    left_out, absent = [], []
    for levels, overrides in _combinations(study, path):
        if any(_has(levels, one) for one in study.leave_out):
            continue
        name = ", ".join(f"{factor}={label}" for factor, label in levels.items())
        name = levels["variant"] if study.variants else name
        everything = base | overrides
        code = str(everything.pop(CODE, ""))
        commit = commit_of(code) if code else ""
        if code and not commit:
            raise StudyError(path, f"variant {name}: {CODE} = {code}: no such revision of git")
        try:
            params = parse_params(everything | {"seed": 0, "replicas": 1}, file=f"{path}, variant {name}")
        except ParamError as error:
            raise StudyError(path, str(error).removeprefix(f"{path}, ")) from None
        if params.processes > 1:
            raise StudyError(
                path, f"variant {name}: processes = {params.processes}: expected 1: the runs of a study have one each"
            )
        missing = params.corpus != "grammar" and not Path(params.corpus).exists()
        if missing and any(levels.get(key) == label for key, label in study.optional.items()):
            left_out.append(f"{name}: its corpus {params.corpus} is not there")
            absent.append(levels)
            continue
        if missing:
            raise StudyError(path, f"variant {name}: corpus = {params.corpus}: no such file or folder")
        same = [commit, params.model_dump(exclude=WITHOUT_EFFECT)]
        twin = twins.setdefault(files.sha256_json(same), name)
        if twin != name:
            raise StudyError(path, f"variants {twin} and {name} have the same parameters; `leave_out` one")
        variants.append(Variant(name, levels, params, code, commit))
    if len(variants) < 2:
        raise StudyError(path, f"{len(variants)} variant(s): expected two or more to compare")
    labels: dict[str, list[str]] = {factor: [] for factor in variants[0].levels}
    for one in variants:
        for factor, label in one.levels.items():
            labels[factor] += [label] if label not in labels[factor] else []
    plan = Plan(study, path, variants, labels, left_out, absent, _dead_factors(study, path, variants))
    _check(plan)
    return plan


def question_of(plan: Plan, command: str) -> Question:
    """What the study asks, for the analysis; with tuning the baseline is known once it has chosen."""
    study = plan.study
    return Question(
        title=study.name,
        text=study.question,
        metric=study.metric,
        direction=study.direction,
        baseline=plan.variant(study.baseline).name if study.tuning is None else "",
        factors=plan.factors,
        within=study.within,
        target=study.target,
        tuned=study.tuning.over if study.tuning else (),
        tuning_seeds=study.tuning.seeds if study.tuning else (),
        numbers={factor: _numbers(plan, factor) for factor in plan.factors if factor != "variant"},
        command=command,
    )


def experiment_name(study: str, variant: Variant, suffix: str = "") -> str:
    """What DVC calls the experiment of a variant: letters, digits, hyphens, dots, and a digest of more."""
    labels = list(variant.levels.values())
    words = labels if "variant" in variant.levels else [f"{key}-{label}" for key, label in variant.levels.items()]
    full = "--".join([study, *words, *([suffix] if suffix else [])])
    plain = re.sub(r"[^A-Za-z0-9.]+", "-", re.sub(r"\.{2,}", "-", full)).strip("-.")
    exact = all(_PLAIN.fullmatch(label) for label in labels) and not plain.endswith(".lock")  # no ref of git is
    return plain if exact and len(plain) <= 90 else f"{plain[:90]}-{files.sha256_json([full, variant.levels])[:8]}"


def _start(study: Study) -> dict[str, Any]:
    if study.start_from == "params.yaml":
        return read_params_file(paths.PARAMS)
    return Params().model_dump()  # type: ignore[call-arg]  # every key has a default


def _combinations(study: Study, path: Path) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    if study.variants:
        for name, overrides in study.variants.items():
            _no_forbidden(overrides, path, f"variants.{name}")
            yield {"variant": name}, overrides
        return
    axes = []
    for factor, levels in study.factors.items():
        if not levels:
            raise StudyError(path, f"factors.{factor}: expected at least one level")
        if not isinstance(levels, dict):
            if factor not in KEYS:
                known = nearest(factor, Params.model_fields)
                raise StudyError(
                    path,
                    f"factors.{factor}: no such parameter{known}; a factor of another name maps each level to values",
                )
            try:
                levels = {label_of(level): {factor: level} for level in levels}
            except ValueError as error:
                raise StudyError(path, f"factors.{factor}: {error}") from None
        for label, overrides in levels.items():
            _no_forbidden(overrides, path, f"factors.{factor}.{label}")
        axes.append([(factor, label, overrides) for label, overrides in levels.items()])
    for combination in itertools.product(*axes):
        together: dict[str, Any] = {}
        for factor, label, overrides in combination:
            if both := together.keys() & overrides.keys():
                raise StudyError(
                    path, f"factors.{factor}.{label}: another factor sets {', '.join(sorted(both))} as well"
                )
            together |= overrides
        yield {factor: label for factor, label, _ in combination}, together


def _no_forbidden(overrides: Mapping[str, Any], path: Path, place: str) -> None:
    for key in overrides:
        if key in _NOT_FOR_STUDIES:
            raise StudyError(path, f"{place}.{key}: not here; see `{_NOT_FOR_STUDIES[key]}`")
        if key not in KEYS:
            raise StudyError(path, f"{place}.{key}: unknown parameter{nearest(key, KEYS)}")


def _has(levels: Mapping[str, str], selector: Selector) -> bool:
    return all(levels.get(factor) == label for factor, label in selector.items())


def _shown(selector: Selector) -> str:
    return f"{{{', '.join(f'{factor}: {label}' for factor, label in selector.items())}}}"


def _several(found: Sequence[Variant]) -> str:
    """How many they are, and which."""
    names = f"{'; '.join(one.name for one in found[:4])}{'; …' * (len(found) > 4)}"
    return f"{len(found)} variants ({names})" if found else "no variant"


def _dead_factors(study: Study, path: Path, variants: Sequence[Variant]) -> list[str]:
    """Notes of factors that some variants have no use for.

    Raises:
        StudyError: no variant has: all its levels would give the same runs.
    """
    notes = []
    unused = {one.name: unused_keys(one.params) for one in variants}
    for factor, levels in study.factors.items():
        contents = list(levels.values()) if isinstance(levels, dict) else [{factor: level} for level in levels]
        keys = {key for content in contents for key in content}
        dead = [name for name, why in unused.items() if keys and keys <= why.keys()]
        if not dead or len(contents) < 2:
            continue
        why = "; ".join(f"{key} has no effect with {unused[dead[0]][key]}" for key in sorted(keys))
        if len(dead) == len(variants):
            raise StudyError(path, f"factors.{factor}: its levels would give the same runs: {why}")
        if len(dead) > 1:
            others = f" and {len(dead) - 1} more"
            notes.append(f"{factor} makes no difference to {dead[0]}{others}: {why}; `leave_out` saves these runs")
    return notes


def _numbers(plan: Plan, factor: str) -> dict[str, float]:
    """The levels of a factor on a numeric axis: what the parameter of that name is in each, where that is a number."""
    found = {}
    for label in plan.factors[factor]:
        try:
            found[label] = float(label)
        except ValueError:
            continue
    return found


def _check(plan: Plan) -> None:
    """What a study says of its variants is true of them."""
    study = plan.study
    tuned = study.tuning.over if study.tuning else []
    for place, listed in {"within": study.within, "tuning.over": tuned}.items():
        for factor in listed:
            if factor not in plan.factors:
                raise StudyError(plan.path, f"{place}: {factor}: no such factor{nearest(factor, plan.factors)}")
    if set(tuned) >= plan.factors.keys():
        raise StudyError(plan.path, f"tuning.over: {', '.join(tuned)}: expected to leave a factor that is compared")
    if study.tuning and (both := sorted(set(study.tuning.seeds) & set(study.seeds))):
        raise StudyError(plan.path, f"tuning.seeds: {both[0]} is among `seeds` too: tuned and reported on the same")
    _check_metric(plan)
    _check_one(plan, study.baseline, "baseline", tuned)
    for i, one in enumerate(study.expectations):
        place = f"expectations.{i}"
        free = _RATES if one.measure == "sensitivity" else tuned
        _check_one(plan, one.of, f"{place}.of", free, may_be_absent=True)
        if one.minus is not None:
            _check_one(plan, one.minus, f"{place}.minus", free, may_be_absent=True)
            if one.measure == "diverged":
                raise StudyError(plan.path, f"{place}.minus: not with measure: diverged, which counts runs")
        if all(bound is None for bound in (one.at_least, one.at_most, one.above, one.below)):
            raise StudyError(plan.path, f"{place}: expected at_least, at_most, above or below")


def _check_metric(plan: Plan) -> None:
    """Every variant will have the metric."""
    metric = plan.study.metric
    section, _, name = metric.partition(".")
    known = {"train": (*MEASURES, "excess"), "valid": MEASURES, "test": MEASURES, "truth": TRUTH}
    if name not in known.get(section, ()):
        names = [f"{one}.{measure}" for one, measures in known.items() for measure in measures]
        raise StudyError(plan.path, f"metric = {metric}: no such measure{nearest(metric, names)}")
    for one in plan.variants:
        lacking = {
            "valid": "" if one.params.valid_fraction else "valid_fraction is 0, so that no text is held out",
            "test": "" if one.params.test_fraction else "test_fraction is 0, so that no text is held out",
            "truth": "" if one.params.corpus == "grammar" else "only of corpus: grammar the truth is known",
        }.get(section)
        if lacking:
            raise StudyError(plan.path, f"metric = {metric}: variant {one.name} will not have it: {lacking}")


def _check_one(
    plan: Plan, selector: Selector | str, place: str, free: Sequence[str], *, may_be_absent: bool = False
) -> None:
    """A selector means one variant, up to factors of which a level is chosen, or all are taken."""
    found = plan.matching(selector, place)
    levels = {"variant": selector} if isinstance(selector, str) else selector
    for factor in levels.keys() & set(free):
        raise StudyError(
            plan.path, f"{place}.{factor}: not here, since its level is not fixed; the other factors say which"
        )
    if not found and may_be_absent and any(_has(one, levels) for one in plan.absent):
        return
    kinds = {tuple(label for factor, label in one.levels.items() if factor not in free) for one in found}
    if len(kinds) != 1:
        shown = selector if isinstance(selector, str) else _shown(selector)
        raise StudyError(plan.path, f"{place} = {shown}: {_several(found)}; expected one")
