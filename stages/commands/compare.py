"""`noam compare`: runs that were made anyhow, in DVC's experiments or in MLflow's store, compared honestly."""

from __future__ import annotations

import argparse
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from stages import files, paths
from stages.commands import options, study
from stages.errors import ArtifactError, RepositoryError, StudyError, nearest

if TYPE_CHECKING:
    from stages.analysis.question import Comparison, Direction
    from stages.commands.options import Commands
    from stages.studies.by_hand import Made
    from stages.studies.collect import Tables
    from stages.tracking.sources import Revision

_RUN_ID = re.compile(r"[0-9a-f]{32}")


def add(commands: Commands) -> None:
    parser = commands.add_parser("compare", help="compare runs of DVC or MLflow: intervals over seeds, paired tests")
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="names of experiments, commits, ids of MLflow's runs (default: all experiments)",
    )
    parser.add_argument(
        "--study", metavar="FILE", help="the runs of a study instead: its file, or the name of a shipped one"
    )
    parser.add_argument("--smoke", action="store_true", help="with --study: of its small size")
    parser.add_argument(
        "--store", action="store_true", help="all finished runs of MLflow's store instead of experiments"
    )
    parser.add_argument(
        "--group",
        action="append",
        default=[],
        metavar="KEY",
        help="parameters whose values make the variants (default: all that differ)",
    )
    parser.add_argument("--where", action="append", default=[], metavar="KEY=VALUE", help="only runs with this value")
    parser.add_argument(
        "--baseline",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="the variant that the others are compared with (default: the first)",
    )
    parser.add_argument(
        "--metric",
        default="",
        metavar="NAME",
        help="such as valid.loss, train.loss, truth.excess (default: the loss on held-out text, where there is some)",
    )
    parser.add_argument("--higher", action="store_true", help="higher values of the metric are better")
    parser.add_argument(
        "--target",
        type=options.real("a number", lambda _: True),
        metavar="LOSS",
        help="count updates and seconds until this loss",
    )
    parser.add_argument("--markdown", action="store_true", help="print Markdown, for a pull request")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--csv", action="store_true", help="print CSV")
    parser.add_argument("--out", metavar="FOLDER", help="write page, pictures, Markdown, CSV and JSON there as well")
    parser.set_defaults(do=run)


def run(arguments: argparse.Namespace) -> int:
    from stages.analysis import study_text

    _check(arguments)
    comparison, tables = _of_study(arguments) if arguments.study else _by_hand(arguments)
    if arguments.markdown:
        print(study_text.markdown(comparison), end="")
    elif arguments.json:
        print(files.dump_json(study_text.json_of(comparison)), end="")
    elif arguments.csv:
        print(study_text.csv_of(comparison), end="")
    else:
        print(study_text.terminal(comparison, shutil.get_terminal_size((100, 24)).columns))
    if arguments.out:
        study.write_report(comparison, tables, Path(arguments.out))
        print(f"report: {Path(arguments.out) / 'index.html'}", file=sys.stderr)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Options that would have no effect together.

    Raises:
        StudyError: such as --metric with --study, whose file has one.
    """
    by_hand = ("runs", "store", "group", "where", "baseline", "metric", "higher", "target")
    given = [name for name in by_hand if getattr(arguments, name) not in ([], "", False, None)]
    if arguments.study and given:
        option = "RUN" if given[0] == "runs" else f"--{given[0]}"
        raise StudyError("command line", f"{option}: not with --study, whose file says what is compared")
    if arguments.smoke and not arguments.study:
        raise StudyError("command line", "--smoke: only with --study")


def _of_study(arguments: argparse.Namespace) -> tuple[Comparison, Tables]:
    from stages.studies import whole

    plan = study.plan_of(arguments.study, smoke=arguments.smoke)
    found = whole.answer(plan, f"noam compare --study {plan.path.as_posix()}{' --smoke' * arguments.smoke}")
    return found.comparison, found.tables


def _by_hand(arguments: argparse.Namespace) -> tuple[Comparison, Tables]:
    from stages.analysis.comparison import compare
    from stages.studies import by_hand
    from stages.studies.collect import Source, tables_of

    ids = [name for name in arguments.runs if _RUN_ID.fullmatch(name)]
    named = [name for name in arguments.runs if name not in ids]
    made: list[Made] = _experiments(named) if named or not (ids or arguments.store) else []
    stored = None
    if ids or arguments.store:
        from stages.tracking.stored import StoredRuns

        stored = StoredRuns(ids)
        made += stored.made()
    made = [replace(one, params=by_hand.plain(one.params)) for one in made]
    made = by_hand.chosen(made, by_hand.parse_pairs(arguments.where, "--where"))
    factors = by_hand.factors_of(made, by_hand.parse_keys(arguments.group))
    metric = arguments.metric or _default_metric(made)
    baseline = by_hand.parse_pairs(arguments.baseline, "--baseline")
    direction: Direction = "higher" if arguments.higher else "lower"
    question = by_hand.question_by_hand(made, factors, baseline, metric, direction, arguments.target)
    found = []
    for one in made:
        variant = by_hand.name_of(one, factors)
        levels = {factor: one.params.get(factor, "") for factor in factors}
        if _RUN_ID.fullmatch(one.origin) and stored is not None:
            found.append(stored.tables(one, variant, levels, metric, arguments.target))
        else:
            found.append(tables_of([Source(variant, levels, (), one.origin)], metric, arguments.target))
    tables, repeated = by_hand.merged(found)
    if repeated:
        print(f"note: {repeated} run(s) left out: a later one has the same variant and seed", file=sys.stderr)
    return compare(tables.runs, question), tables


def _experiments(names: list[str]) -> list[Made]:
    """DVC's experiments of these names, or commits; without names all and HEAD, as far as there are results.

    Raises:
        StudyError: no such experiment or commit.
        ArtifactError: one that was named has no results here.
    """
    from stages.studies.by_hand import Made, as_text
    from stages.studies.collect import Results
    from stages.studies.workspace import commit_of

    listed = _listed()
    known = {one.experiment or "HEAD": one.commit for one in listed}  # of several the one made last
    chosen = [(name, known.get(name) or commit_of(name)) for name in names]
    for name, commit in chosen:
        if not commit:
            raise StudyError(name, f"no such experiment, commit or run{nearest(name, known)}")
    found = []
    for name, commit in chosen or [(one.experiment or "HEAD", one.commit) for one in listed]:
        try:
            results = Results.of(commit)
            results.read(paths.REPLICAS)
        except (ArtifactError, RepositoryError) as error:
            if names:
                raise
            print(f"note: {name} left out: {error}", file=sys.stderr)
            continue
        found.append(Made(name, as_text(results.params), commit))
    return found


def _listed() -> list[Revision]:
    """HEAD and DVC's experiments, in the order in which they were made."""
    from stages.repository import git
    from stages.tracking.sources import revisions

    found = revisions()
    times = git("show", "-s", "--format=%ct", *(one.commit for one in found)).split() if found else []
    return [one for _, one in sorted(zip(map(int, times), found, strict=True), key=lambda pair: pair[0])]


def _default_metric(made: list[Made]) -> str:
    """The loss on held-out text where every run has some, else on the training text."""
    held_out = all(float(one.params.get("valid_fraction", 0) or 0) > 0 for one in made)
    return "valid.loss" if held_out else "train.loss"
