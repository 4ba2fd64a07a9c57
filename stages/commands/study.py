"""`noam study run | status | report`: variants × seeds from a file, run once, compared honestly."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from stages import files, paths
from stages.commands import options
from stages.errors import StudyError, nearest

if TYPE_CHECKING:
    from stages.analysis.question import Comparison
    from stages.commands.options import Commands
    from stages.studies.collect import Tables
    from stages.studies.plan import Plan

SHIPPED = Path("data/studies")
REPORTS = Path("reports/studies")


def add(commands: Commands) -> None:
    parser = commands.add_parser("study", help="run variants × seeds from a file, and compare them honestly")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    run = verbs.add_parser("run", help="run what has not been run, then report")
    run.add_argument(
        "--workers", type=options.whole(), default=0, metavar="N", help="runs at once (default: one a core)"
    )
    run.add_argument(
        "--on",
        default="local",
        metavar="WHERE",
        help="local (default), slurm, or a scheduler of Dask: dask://HOST:PORT, tls://HOST:PORT",
    )
    run.add_argument(
        "--slurm", action="append", default=[], metavar="KEY=VALUE", help="of the jobs: partition, time, cpus, …"
    )
    run.set_defaults(do=_run)
    verbs.add_parser("status", help="what has been run, what failed, what is under way").set_defaults(do=_status)
    verbs.add_parser("report", help="compare what has been run").set_defaults(do=_report)
    for verb in verbs.choices.values():
        verb.add_argument("study", metavar="FILE", help=f"a study file, or the name of one in {SHIPPED}")
        verb.add_argument("--smoke", action="store_true", help="its small size, which takes seconds")


def _run(arguments: argparse.Namespace) -> int:
    from stages import numerics  # noqa: F401 (before NumPy)
    from stages.studies import whole

    if arguments.slurm and arguments.on != "slurm":
        raise StudyError("command line", f"--slurm {arguments.slurm[0]}: only with --on slurm")
    if arguments.workers and arguments.on != "local":
        raise StudyError("command line", f"--workers {arguments.workers}: only with --on local")
    plan = plan_of(arguments.study, smoke=arguments.smoke)
    for line in plan.notes:
        print(f"note: {line}", file=sys.stderr)
    signal.signal(signal.SIGTERM, _interrupt)
    started = time.monotonic()
    try:
        account = whole.run(plan, workers=arguments.workers, on=arguments.on, slurm=arguments.slurm, say=_say)
    except KeyboardInterrupt as interrupt:
        number = signal.Signals(interrupt.args[0] if interrupt.args else signal.SIGINT)
        print(f"error: stopped by {number.name}; the same command goes on from here", file=sys.stderr)
        return 128 + number
    seconds = time.monotonic() - started
    _say(
        f"{len(account.ran)} variants run in {seconds:.0f} s, {len(account.known)} known, {len(account.failed)} failed"
    )
    for name, what in account.strange.items():
        _say(f"{name}: {what}")
    if len(account.failed) < len(plan.variants):
        _answer(plan, arguments)
    return 1 if account.failed else 0


def _status(arguments: argparse.Namespace) -> int:
    from stages.studies.status import lines

    for line in lines(plan_of(arguments.study, smoke=arguments.smoke)):
        print(line)
    return 0


def _report(arguments: argparse.Namespace) -> int:
    _answer(plan_of(arguments.study, smoke=arguments.smoke), arguments)
    return 0


def plan_of(name: str, *, smoke: bool) -> Plan:
    """The study that is meant, checked.

    Raises:
        StudyError: there is no such file, or something in it is not allowed.
    """
    from stages.studies.plan import make_plan
    from stages.studies.spec import load_study

    given = Path(name)
    path = given if given.suffix or given.exists() else SHIPPED / f"{name}.yaml"
    if not path.is_file():
        known = sorted(one.stem for one in SHIPPED.glob("*.yaml"))
        raise StudyError(given, f"no such file, nor one of {', '.join(known)}{nearest(given.name, known)}")
    plan = make_plan(load_study(path, smoke=smoke), path)
    for reason in plan.left_out:
        print(f"note: left out: {reason}", file=sys.stderr)
    return plan


def _answer(plan: Plan, arguments: argparse.Namespace) -> None:
    """Compare, write the report, tell the terminal and MLflow."""
    from stages.analysis import study_text
    from stages.studies import whole

    command = f"noam study run {plan.path.as_posix()}{' --smoke' * arguments.smoke}"
    found = whole.answer(plan, command)
    folder = REPORTS / plan.study.name
    write_report(found.comparison, found.tables, folder)
    files.write_json(folder / "members.json", whole.members(plan, found.variants))
    print(study_text.terminal(found.comparison, shutil.get_terminal_size((100, 24)).columns))
    print(f"report: {folder / 'index.html'}")
    send(folder)


def write_report(comparison: Comparison, tables: Tables, folder: Path) -> None:
    """Everything that a comparison is told in: page, Markdown, CSV, JSON, pictures."""
    from stages.analysis import study_figures, study_report, study_text, style

    drawn = style.all_rendered(study_figures.figures(comparison, tables.runs, tables.curves, tables.rates))
    with files.replacing_folder(folder) as target:
        for name, kinds in drawn.items():
            files.write_bytes(target / "figures" / f"{name}.png", kinds["png"])
        pictures = {name: f"figures/{name}.png" for name in drawn}
        files.write_text(
            target / "index.html", study_report.page(comparison, {name: kinds["svg"] for name, kinds in drawn.items()})
        )
        files.write_text(target / "report.md", study_text.markdown(comparison, pictures))
        files.write_text(target / "results.csv", study_text.csv_of(comparison))
        files.write_json(target / "results.json", study_text.json_of(comparison))


def send(folder: Path) -> None:
    """Bring a report and the runs that it is about into MLflow; where that fails, say so and go on."""
    from stages.tracking.attempt import attempt

    log = paths.run_state() / "track.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    sent, message = attempt(["--study", os.fspath(folder)], log)
    if not sent:
        print(f"warning: {message}; the report is complete, `noam study report` sends it later", file=sys.stderr)
    elif message:
        print(message)


def _interrupt(number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt(number)


def _say(line: str) -> None:
    print(f"study: {line}", flush=True)
