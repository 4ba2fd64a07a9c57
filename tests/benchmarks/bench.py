"""What our training takes, beside what it is measured against: `make bench`, or `python -m tests.benchmarks.bench`.

    one-run     the notebook's loop, and ours as faithful to it
    replicas    eight seeds of that run on two cores, a replica's share of the time
    characters  tokens a second at nanoGPT's settings for a CPU
    processes   the same by two processes, beside one
    memory      the peak while training on a text of 1 GB
    pipeline    what `dvc repro` takes beyond the training loop
    checkpoint  what checkpoints add
    scoring     tokens a second of the evaluation, beside training
    study       eight variants by five seeds as a study, beside DVC's queue
    text        how fast a text of 1 GB is prepared and cut into words, and the memory that it takes

Prints Markdown and writes build/bench.json. No time makes it fail; a contender that cannot run does.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.benchmarks import texts
from tests.benchmarks.contest import (
    ROOT,
    Contender,
    ContenderError,
    Entry,
    Outcome,
    Spread,
    Turn,
    contest,
    paired_ratios,
)

RESULTS = ROOT / "build" / "bench.json"
DEFAULT_UPDATES = 2700
_QUIET_PERCENT = 10


@dataclass(frozen=True)
class Scale:
    """How much is done: rounds of the short turns and of the long ones, and whether to be quick."""

    rounds: int
    long_rounds: int
    quick: bool


@dataclass
class Report:
    """What a case found out.

    Attributes:
        title: what was measured.
        base: the contender that the others are compared with.
        turns: of each contender; all have equally many.
        values: other numbers, for programs.
        notes: other numbers, in words.
        failures: contenders that could not run, and why.
    """

    title: str
    base: str
    turns: dict[str, list[Turn]] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    failures: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, title: str, base: str, outcome: Outcome) -> Report:
        return cls(title, base, outcome.turns, failures=outcome.failures)


def one_run(scale: Scale) -> Report:
    base = "notebook's loop"
    entries = {
        base: Entry("notebook", pieces=90, warmup=90),
        "ours, portable": Entry("our toy", pieces=270, warmup=270, arguments={"numerics": "portable"}),
        "ours, native": Entry("our toy", pieces=270, warmup=270, arguments={"numerics": "native"}),
        "matrix products alone": Entry("toy products", pieces=900, warmup=900),
    }
    return Report.of("One run of the nine sentences, one thread", base, contest(entries, scale.rounds))


def replicas(scale: Scale) -> Report:
    base, updates = "notebook's loop", 270 if scale.quick else DEFAULT_UPDATES
    entries = {base: Entry("notebook", pieces=updates // 3, warmup=90)}
    for numerics in ("portable", "native"):
        arguments = {"count": 8, "workers": 2, "max_updates": updates, "numerics": numerics}
        entries[f"ours, {numerics}"] = Entry("our replicas", pieces=1, warmup=1, arguments=arguments)
    with tempfile.TemporaryDirectory() as folder:
        outcome = contest(entries, scale.long_rounds, Path(folder))
    title = f"Eight seeds of {updates} updates in two workers, their start included: an update of one of them"
    return Report.of(title, base, outcome)


def characters(scale: Scale) -> Report:
    base = "nanoGPT's loop"
    entries = {
        base: Entry("nanogpt", pieces=15, warmup=10),
        "ours": Entry("our characters", pieces=15, warmup=10),
        "matrix products alone": Entry("character products", pieces=30, warmup=10),
    }
    compiled = {
        "nanoGPT's loop, compiled": Entry("nanogpt", pieces=15, warmup=10, arguments={"compiled": True}),
        "ours, compiled": Entry("our characters", pieces=15, warmup=10, arguments={"compile": True}),
    }
    text, name = texts.real_text()
    with tempfile.TemporaryDirectory() as folder:
        texts.write_characters(Path(folder), text)
        environment = {"TORCHINDUCTOR_CACHE_DIR": f"{folder}/compiled"}
        cold = Outcome({}, {}, {})
        if not scale.quick:
            cold = contest(compiled, 0, Path(folder), **environment)
            entries |= {name: entry for name, entry in compiled.items() if name in cold.first}
        outcome = contest(entries, scale.rounds, Path(folder), **environment)
    report = Report.of(f"Characters of {name}, 12 windows of 64, two threads", base, outcome)
    report.failures |= cold.failures
    for contender, seconds in cold.first.items():
        report.values[contender] = {"first_update_cold_s": seconds, "first_update_warm_s": outcome.first[contender]}
        report.notes.append(
            f"{contender}: first update after {seconds:.0f} s with an empty cache of compiled code, "
            f"{outcome.first[contender]:.0f} s with a full one; not in the table"
        )
    return report


def processes(scale: Scale) -> Report:
    base = "one process"
    alone = {"shards": 1, "threads": 1}
    entries = {base: Entry("our characters", pieces=30, warmup=10, arguments=alone)}
    for name, settings in {"": {}, ", FSDP2": {"fsdp": True}}.items():
        entries[f"two processes{name}"] = Entry(
            "ours together", pieces=30, warmup=10, arguments={"processes": 2, **settings}
        )
    entries["one process, two shards"] = Entry("our characters", pieces=30, warmup=10)
    text, name = texts.real_text()
    with tempfile.TemporaryDirectory() as folder:
        texts.write_characters(Path(folder), text)
        outcome = contest(entries, scale.rounds, Path(folder))
    report = Report.of(f"Characters of {name}, 12 windows of 64, one thread a process", base, outcome)
    report.notes.append("CPU: of the first process alone")
    return report


def memory(scale: Scale) -> Report:
    contender, text_bytes = "ours, packed", 10**8 if scale.quick else 10**9
    with tempfile.TemporaryDirectory() as folder:
        ids = texts.write_large(Path(folder), text_bytes)
        outcome = contest({contender: Entry("our large text", pieces=200, warmup=0)}, 1, Path(folder))
    report = Report.of(f"Training on a text of {text_bytes / 1e9:g} GB, 200 updates", contender, outcome)
    for turn in outcome.turns.get(contender, []):
        report.values = {"text_bytes": text_bytes, "ids": ids, "peak_bytes": turn.peak_bytes}
        report.notes.append(
            f"peak of resident memory: {turn.peak_bytes / 1e9:.2f} GB, with {ids / 1e6:.0f} million ids"
        )
    return report


def pipeline(scale: Scale) -> Report:
    whole, loop = "`dvc repro -f`", "its training loop alone"
    report = Report("The default run as a pipeline, in a new clone each time", whole, {whole: [], loop: []})
    with Contender(Entry("our default runs", pieces=1, warmup=1)) as contender:
        contender.wait_until_ready()
        for _ in range(scale.long_rounds):
            report.turns[whole].append(_repro())
            report.turns[loop].append(contender.turn(1))
    ratios = Spread.of(paired_ratios(report.turns[whole], report.turns[loop]))
    beyond = statistics.median(a.wall - b.wall for a, b in zip(*report.turns.values(), strict=True))
    report.values = {"times_the_loop": asdict(ratios), "seconds_beyond_the_loop": beyond}
    report.notes.append(f"the pipeline takes {ratios.median:.2f} times its training loop, {beyond:.1f} s more")
    return report


def _repro() -> Turn:
    """One `dvc repro -f` of the default run in a new copy of this project, MLflow's curves on, as they are."""
    from tests.pipeline.project import copy_project

    with tempfile.TemporaryDirectory() as folder:
        project = copy_project(Path(folder) / "project")
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        done = project.run("dvc", "repro", "-f", check=False, NOAM_LIVE="on")
        wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        print(done.stdout, done.stderr, file=sys.stderr)
        raise ContenderError(f"dvc repro ended with {done.returncode}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Turn(wall, cpu, DEFAULT_UPDATES, DEFAULT_UPDATES * 48 / 9)


def checkpoint(scale: Scale) -> Report:
    updates, every, base = 900, 90, "one at the end"
    entries = {}
    for name, number in {base: 0, "one each 500 updates": 500, f"one each {every} updates": every}.items():
        arguments = {"max_updates": updates, "checkpoint_every": number}
        entries[name] = Entry("our saved runs", pieces=1, warmup=1, arguments=arguments)
    with tempfile.TemporaryDirectory() as folder:
        outcome = contest(entries, scale.rounds, Path(folder))
    report = Report.of(f"Checkpoints in a run of {updates} updates of the nine sentences", base, outcome)
    without, often = (report.turns[name] for name in (base, f"one each {every} updates"))
    more = [1e3 * (b.wall - a.wall) / (updates // every) for a, b in zip(without, often, strict=True)]
    report.values = {"ms_a_checkpoint": asdict(Spread.of(more))}
    report.notes.append(f"{statistics.median(more):.1f} ms a checkpoint")
    return report


def scoring(scale: Scale) -> Report:
    base, entries = "training, native", {}
    for numerics in ("native", "portable"):
        entries[f"training, {numerics}"] = Entry("our characters", 15, 10, {"numerics": numerics})
        entries[f"scoring, {numerics}"] = Entry("our scores", 3, 2, {"numerics": numerics})
    text, name = texts.real_text()
    with tempfile.TemporaryDirectory() as folder:
        texts.write_characters(Path(folder), text)
        outcome = contest(entries, scale.rounds, Path(folder))
    report = Report.of(f"Characters of {name}, trained and scored, two threads", base, outcome)
    for numerics in ("native", "portable"):
        speeds = [
            [turn.tokens / turn.wall for turn in report.turns[f"{what}, {numerics}"]]
            for what in ("training", "scoring")
        ]
        ratio = Spread.of([fast / slow for slow, fast in zip(*speeds, strict=True)])
        report.values[f"tokens_a_second_{numerics}"] = asdict(ratio)
        report.notes.append(f"{numerics}: {ratio.median:.2f} times as many tokens a second are scored as are trained")
    return report


def text(scale: Scale) -> Report:
    size = 10**8 if scale.quick else 10**9
    report = Report(f"A text of {size / 1e9:g} GB, tokenizer: word", "")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in ("stages", "params.yaml", "dvc.yaml"):
            (folder / name).symlink_to(ROOT / name)
        file = folder / "large.txt"
        texts.write_text(file, size)
        content = (folder / "params.yaml").read_text(encoding="utf-8").replace("data/raw/notebook.txt", "large.txt")
        (folder / "params.yaml").unlink()
        (folder / "params.yaml").write_text(content, encoding="utf-8")
        for stage in ("prepare", "vocab"):
            start = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, "-m", f"stages.{stage}"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
            )
            _, status, used = os.wait4(process.pid, 0)
            seconds, peak = time.perf_counter() - start, used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
            if status:
                said = process.stderr.read().decode() if process.stderr else ""
                raise ContenderError(f"{stage} ended with {os.waitstatus_to_exitcode(status)}: {said[-300:]}")
            speed = file.stat().st_size / 1e6 / seconds
            report.values[stage] = {"megabytes_a_second": speed, "peak_bytes": peak}
            report.notes.append(f"{stage}: {speed:.1f} MB/s, peak of resident memory {peak / 1e9:.2f} GB")
    return report


def study(scale: Scale) -> Report:
    from tests.benchmarks.studies import seconds_of_queue, seconds_of_study

    warmups, seeds = ([400, 4000], [0, 1]) if scale.quick else ([100, 200, 400, 800, 1600, 4000, 8000, 40000], range(5))
    epochs = 10 if scale.quick else 100
    as_study = seconds_of_study(warmups, list(seeds), epochs)
    in_queue = seconds_of_queue(warmups, list(seeds), epochs)
    runs = len(warmups) * len(seeds)
    report = Report(
        f"{len(warmups)} variants by {len(seeds)} seeds of the nine sentences, {epochs} epochs, once each", ""
    )
    report.values = {"runs": runs, "study_s": as_study, "queue_s": in_queue, "share": as_study / in_queue}
    report.notes.append(
        f"`noam study run` {as_study:.0f} s, `dvc queue start -j 2` {in_queue:.0f} s for the same {runs} runs: "
        f"{as_study / in_queue:.3f} of it"
    )
    return report


CASES: dict[str, Callable[[Scale], Report]] = {
    "one-run": one_run,
    "replicas": replicas,
    "characters": characters,
    "processes": processes,
    "memory": memory,
    "pipeline": pipeline,
    "checkpoint": checkpoint,
    "scoring": scoring,
    "study": study,
    "text": text,
}


def summary(report: Report) -> dict[str, dict[str, Any]]:
    """Medians of each contender's turns, and its ratios to the base with their quartiles."""
    found = {}
    for name, turns in report.turns.items():
        found[name] = {
            "wall_ms_an_update": statistics.median(1e3 * turn.wall / turn.updates for turn in turns),
            "cpu_ms_an_update": statistics.median(1e3 * turn.cpu / turn.updates for turn in turns),
            "tokens_a_second": statistics.median(turn.tokens / turn.wall for turn in turns),
            "times_faster": asdict(Spread.of(paired_ratios(report.turns[report.base], turns))),
            "times_less_cpu": asdict(Spread.of(paired_ratios(report.turns[report.base], turns, "cpu"))),
        }
    return found


def markdown(report: Report) -> str:
    """The report as a heading, a table and notes."""
    lines = [f"### {report.title}", ""]
    if report.turns:
        lines += [
            "| | ms an update | CPU ms an update | tokens a second | times as fast (quartiles) | CPU |",
            "|---|---|---|---|---|---|",
        ]
    for name, row in summary(report).items():
        fast, cpu = Spread(**row["times_faster"]), Spread(**row["times_less_cpu"])
        ratios = f"{fast.median:.2f} ({fast.low:.2f}–{fast.high:.2f}) | {cpu.median:.2f}"
        times = f"{row['wall_ms_an_update']:.2f} | {row['cpu_ms_an_update']:.2f} | {row['tokens_a_second']:,.0f}"
        lines.append(f"| {name} | {times} | {'1 | 1' if name == report.base else ratios} |")
    lines += ["", *(f"- {note}" for note in report.notes)]
    lines += [f"- {name}: could not run ({problem})" for name, problem in report.failures.items()]
    return "\n".join(lines).strip() + "\n"


def machine() -> dict[str, Any]:
    """What was measured on."""
    cpuinfo = Path("/proc/cpuinfo")
    models = [line.split(":")[1].strip() for line in _lines(cpuinfo) if line.startswith("model name")]
    return {
        "processor": models[0] if models else platform.processor(),
        "cores": os.cpu_count(),
        "system": platform.system(),
        "python": platform.python_version(),
        "torch": importlib.metadata.version("torch"),
    }


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8", errors="replace").splitlines() if path.is_file() else []


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=CASES, action="append", help="this case; may be given several times")
    parser.add_argument("--rounds", type=int, help="turns of each contender")
    parser.add_argument("--quick", action="store_true", help="few rounds, short runs, a smaller text, nothing compiled")
    options = parser.parse_args()
    rounds, long_rounds = (5, 1) if options.quick else (15, 3)
    scale = Scale(options.rounds or rounds, options.rounds or long_rounds, options.quick)

    about = machine()
    print(
        f"{about['processor']}, {about['cores']} cores, torch {about['torch']}, Python {about['python']}\n", flush=True
    )
    reports: dict[str, Report] = {}
    for name in options.only or CASES:
        busy = psutil.cpu_percent(interval=1)
        try:
            reports[name] = CASES[name](scale)
        except ContenderError as error:
            reports[name] = Report(name, "", failures={name: str(error)})
        reports[name].values["percent_busy_before"] = busy
        if busy > _QUIET_PERCENT:
            reports[name].notes.append(f"other programs took {busy:.0f} % of the machine before this: not to be quoted")
        print(markdown(reports[name]), flush=True)
        _write(about, scale, reports)
    return 1 if any(report.failures for report in reports.values()) else 0


def _write(about: Mapping[str, Any], scale: Scale, reports: Mapping[str, Report]) -> None:
    cases = {
        name: {**asdict(report), "summary": summary(report) if report.turns else {}} for name, report in reports.items()
    }
    RESULTS.parent.mkdir(exist_ok=True)
    content = {"machine": about, "scale": asdict(scale), "cases": cases}
    RESULTS.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
