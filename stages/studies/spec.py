"""A study as a small YAML file: what varies, over which seeds, what counts, and what is expected.

`python -m stages.studies.spec` prints the JSON schema that editors use.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from stages.errors import ParamError, StudyError, nearest
from stages.params import Real, Text, read_params_file

Overrides = dict[str, Any]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_MOST_SEEDS = 1000


def label_of(value: Any) -> str:
    """How a level is called, one way for all spellings of a number: 400, 0.001, true, pre.

    Raises:
        ValueError: it is a list or the like.
    """
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str) and (value.isdecimal() or not _NUMBER.fullmatch(value)):
        return value
    if not isinstance(value, str | float):
        shown = json.dumps(value, ensure_ascii=False, default=str)
        raise ValueError(f"{shown} is no level: expected a number, a text, true or false")
    number = float(value)  # also 1e-3, which YAML takes for a text
    if number.is_integer() and abs(number) < 1e15:
        return str(int(number))
    short = f"{number:.6g}"
    return short if float(short) == number or number != number else repr(number)


def _by_label(value: Any) -> Any:
    """A mapping whose keys are labels, however YAML reads them: 40 is a label as well."""
    if not isinstance(value, dict):
        return value
    _distinct(labels := [label_of(key) for key in value])
    return dict(zip(labels, value.values(), strict=True))


def _levels(value: Any) -> Any:
    """Levels that can be told apart."""
    if isinstance(value, list):
        _distinct([label_of(level) for level in value])
        return value
    if not isinstance(value, dict):
        raise ValueError("expected a list of values, or labels, each with its values")
    labelled: dict[str, Any] = _by_label(value)
    for label, overrides in labelled.items():
        if not isinstance(overrides, dict):
            shown = json.dumps(overrides, ensure_ascii=False, default=str)
            raise ValueError(f"expected the values of {label} as KEY: VALUE, not {shown}")
    return labelled


def _distinct(labels: Sequence[str]) -> None:
    for i, label in enumerate(labels):
        if label in labels[:i]:
            raise ValueError(f"{label} is there twice")


def _levels_of_factors(value: Any) -> Any:
    """A level a factor; or the name of a variant, which may look like a number."""
    if isinstance(value, dict):
        return {factor: label_of(label) for factor, label in value.items()}
    try:
        return label_of(value)
    except ValueError:
        raise ValueError("expected a level for each factor, or the name of a variant of a list") from None


# A level is written as a value of the parameter that the factor is called, or as a label with values of its own.
Levels = Annotated[list[Any] | dict[str, Overrides], BeforeValidator(_levels)]
Level = Annotated[str, BeforeValidator(label_of)]
Selector = dict[str, Level]
OneVariant = Annotated[dict[str, str] | str, BeforeValidator(_levels_of_factors)]


def _seeds(value: Any) -> tuple[int, ...]:
    """Seeds written as 10-19, as one number, or as a list of numbers that follow each other."""
    if isinstance(value, str) and (match := re.fullmatch(r"\s*(\d{1,10})\s*(?:[-–]\s*(\d{1,10})\s*)?", value)):
        first, last = int(match[1]), int(match[2] or match[1])
        found = range(first, min(last, first + _MOST_SEEDS) + 1)  # so that nobody makes billions of them
    elif isinstance(value, int) and not isinstance(value, bool):
        found = range(value, value + 1)
    elif isinstance(value, list | tuple) and value and all(type(one) is int for one in value):
        found = range(value[0], value[0] + len(value))
        if list(value) != list(found):
            raise ValueError("expected seeds that follow each other, such as 10-19")
    else:
        raise ValueError("expected seeds such as 10-19")
    if not 1 <= len(found) <= _MOST_SEEDS or found[0] < 0 or found[-1] >= 2**32:
        raise ValueError(f"expected 1 to {_MOST_SEEDS} seeds below 2^32 that follow each other, such as 10-19")
    return tuple(found)


Seeds = Annotated[tuple[int, ...], BeforeValidator(_seeds)]


class Tuning(_Part):
    """Of some factors the best level is chosen first, for each combination of the others, on seeds of its own."""

    over: list[str] = Field(min_length=1, description="factors of which one level is chosen")
    seeds: Seeds = Field(description="seeds of the trials, apart from those that are reported")


class Expected(_Part):
    """One expectation: a number that the study gives, and the bounds that it should keep."""

    says: Text = Field(min_length=1, description="the expectation in words")
    of: Selector = Field(description="which variant: a level for each factor that has several")
    minus: Selector | None = Field(None, description="another variant: the mean paired difference counts")
    measure: Literal["mean", "median", "lowest", "highest", "sensitivity", "diverged"] = Field(
        "mean", description="what over the seeds: of the metric; `sensitivity` over the grid of the rate"
    )
    absolute: bool = Field(False, description="without its sign")
    at_least: Real | None = Field(None, description="lower bound")
    at_most: Real | None = Field(None, description="upper bound")
    above: Real | None = Field(None, description="lower bound that is itself not enough")
    below: Real | None = Field(None, description="upper bound that is itself too much")


class Smoke(_Part):
    """The same study, small enough for a test."""

    base: Overrides = Field({}, description="values that differ from those of the full study")
    seeds: Seeds | None = Field(None, description="seeds instead of those of the full study")
    keep: dict[str, list[Level]] = Field({}, description="of these factors only these levels")
    baseline: OneVariant | None = Field(None, description="where that of the full study is not kept")
    expectations: list[Expected] = Field([], description="what is expected at this size")


class Study(_Part):
    """A study file."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$", description="small letters, digits and hyphens")
    question: Text = Field(min_length=1, description="what it asks, in a sentence")
    start_from: Literal["defaults", "params.yaml"] = Field(
        "defaults",
        description="where values come from that the study does not give: it means the same tomorrow, or not",
    )
    base: Overrides = Field({}, description="parameters of all variants")
    factors: dict[str, Levels] = Field({}, description="the grid: each factor with its levels")
    variants: Annotated[dict[str, Overrides], BeforeValidator(_by_label)] = Field(
        {}, description="instead of a grid: each variant with its values"
    )
    leave_out: list[Selector] = Field([], description="combinations of levels that are not run")
    optional: Selector = Field({}, description="levels left out, with a note, where their corpus is not there")
    seeds: Seeds = Field(description="seeds of the runs that are reported")
    baseline: OneVariant = Field(description="what the others are compared with: a level a factor, or a name")
    within: list[str] = Field([], description="factors that comparisons keep fixed")
    metric: str = Field(
        "valid.loss", pattern=r"^\w+\.\w+$", description="such as valid.loss, as reports/replicas.json has it"
    )
    direction: Literal["lower", "higher"] = Field("lower", description="which values are better")
    target: Real | None = Field(None, description="measured loss whose first update counts as steps to target")
    tuning: Tuning | None = Field(None, description="choose levels of some factors first")
    expectations: list[Expected] = Field([], description="what the study should show, and is told not to have")
    smoke: Smoke | None = Field(None, description="a size for tests")


def load_study(path: Path, *, smoke: bool = False) -> Study:
    """The study in a file, checked; or its small size.

    Raises:
        StudyError: no such file, or a key or value that is not allowed, by its path in the file.
    """
    try:
        raw = read_params_file(path)
    except ParamError as error:
        raise StudyError(path, str(error).partition(": ")[2]) from None
    try:
        study = Study.model_validate(raw)
    except ValidationError as error:
        raise StudyError(path, _problems(error)) from None
    if bool(study.factors) == bool(study.variants):
        raise StudyError(path, "expected either factors (a grid) or variants (a list)")
    _check_selectors(study, path)
    if not smoke:
        return study
    if study.smoke is None:
        raise StudyError(path, "smoke: it has no small size")
    return _smaller(study, study.smoke, path)


def _grid(study: Study) -> dict[str, dict[str, Any]]:
    """Of each factor its levels, by label; a list of variants is one factor."""
    if study.variants:
        return {"variant": dict(study.variants)}
    return {
        factor: levels if isinstance(levels, dict) else {label_of(level): level for level in levels}
        for factor, levels in study.factors.items()
    }


def _check_selectors(study: Study, path: Path) -> None:
    """What is left out is something that would be there; a mistake would be dropped in silence."""
    grid = _grid(study)
    places = {f"leave_out.{i}": one for i, one in enumerate(study.leave_out)} | {"optional": study.optional}
    for place, selector in places.items():
        for factor, label in selector.items():
            _check_level(grid, factor, label, place, path)
        if place != "optional" and not selector:
            raise StudyError(path, f"{place}: expected a level of at least one factor")


def _check_level(grid: dict[str, dict[str, Any]], factor: str, label: str, place: str, path: Path) -> None:
    if factor not in grid:
        raise StudyError(path, f"{place}.{factor}: no such factor{nearest(factor, grid)}")
    if label not in grid[factor]:
        raise StudyError(path, f"{place}.{factor} = {label}: expected {' or '.join(grid[factor])}")


def _smaller(study: Study, smoke: Smoke, path: Path) -> Study:
    grid = _grid(study)
    kept: dict[str, Any] = dict(study.factors)
    for factor, labels in smoke.keep.items():
        for label in labels:
            _check_level(grid, factor, label, "smoke.keep", path)
        if not labels or factor not in grid:
            _check_level(grid, factor, "nothing", "smoke.keep", path)
        levels = {label: grid[factor][label] for label in labels}
        kept[factor] = list(levels.values()) if isinstance(kept.get(factor), list) else levels
    return study.model_copy(
        update={
            "name": f"{study.name}-smoke",
            "base": study.base | smoke.base,
            "seeds": smoke.seeds or study.seeds,
            "baseline": smoke.baseline or study.baseline,
            "variants": kept.pop("variant", study.variants),
            "factors": kept,
            "expectations": smoke.expectations,
            "smoke": None,
        }
    )


def _problems(error: ValidationError) -> str:
    found = []
    for detail in error.errors():
        place = ".".join(str(part) for part in detail["loc"])
        if detail["type"] == "extra_forbidden":
            known = _part_at(detail["loc"][:-1]).model_fields
            found.append(f"{place}: unknown key{nearest(str(detail['loc'][-1]), known)}")
        elif detail["type"] == "missing":
            about = _part_at(detail["loc"][:-1]).model_fields[str(detail["loc"][-1])].description
            found.append(f"{place}: missing ({about})")
        else:
            shown = json.dumps(detail["input"], ensure_ascii=False, default=str)
            found.append(f"{place} = {shown}: {_allowed(detail)}")
    return "; ".join(dict.fromkeys(found))


def _part_at(place: Sequence[int | str]) -> type[_Part]:
    """The class of what is written at a place in the file."""
    parts: dict[str, type[_Part]] = {"tuning": Tuning, "expectations": Expected, "smoke": Smoke}
    return next((parts[str(key)] for key in reversed(place) if key in parts), Study)


def _allowed(detail: Any) -> str:
    """What would be allowed instead, in words."""
    known = {
        "list_type": "expected a list",
        "tuple_type": "expected a list",
        "dict_type": "expected KEY: VALUE",
        "model_type": "expected KEY: VALUE",
        "too_short": "expected at least one entry",
        "string_too_short": "expected some text",
        "string_type": "expected a text",
        "bool_type": "expected true or false",
        "bool_parsing": "expected true or false",
    }
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "string_pattern_mismatch":
        return f"expected {_part_at(detail['loc'][:-1]).model_fields[str(detail['loc'][-1])].description}"
    if detail["type"] == "literal_error":
        return f"expected {detail['ctx']['expected']}"
    if message.startswith(("could not convert", "not finite", "not a number")):
        return "expected a number"
    return known.get(detail["type"], message)


def json_schema() -> dict[str, Any]:
    """The JSON schema of a study file."""
    schema = Study.model_json_schema()
    schema["title"] = "Noam Lab study"
    return schema


if __name__ == "__main__":
    print(json.dumps(json_schema(), ensure_ascii=False, indent=1))
