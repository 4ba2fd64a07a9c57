"""`noam lr-find`: what it says, draws and refuses."""

from __future__ import annotations

import re

import pytest

from tests.conftest import Lab


@pytest.fixture
def ready(small_lab: Lab) -> Lab:
    """Text and vocabulary are there; a rate of its own, after a ramp."""
    small_lab.set(schedule="constant", dropout=0.0)
    small_lab.run("prepare", "vocab")
    return small_lab


def test_it_suggests_a_peak_and_a_ramp_and_draws_why(ready: Lab) -> None:
    done = ready.command("stages.cli", "lr-find", "--from", "1e-5", "--to", "10", "--updates", "60")
    assert done.returncode == 0, done.stderr
    suggested = re.search(r"suggested +lr: (\S+) with warmup: (\d+)", done.stdout)
    assert suggested
    rows = ready.read("reports/lr-find/lr-find.json")
    lowest = min(rows, key=lambda row: row["smoothed"])
    assert float(suggested[1]) == pytest.approx(lowest["lr"] / 3, rel=0.01)
    assert 1e-4 < float(suggested[1]) < 1
    assert int(suggested[2]) == 3  # a tenth of 27 updates, fewer than 2 / (1 - beta2)
    assert [row["lr"] for row in rows] == sorted(row["lr"] for row in rows)
    assert (ready.folder / "reports/lr-find/lr-find.png").read_bytes().startswith(b"\x89PNG")


def test_for_noam_the_peak_is_given_as_a_factor(ready: Lab) -> None:
    ready.set(schedule="noam")
    done = ready.command("stages.cli", "lr-find", "--from", "1e-5", "--to", "10", "--updates", "60")
    found = re.search(r"factor: (\S+) with warmup: (\d+) \(a peak of (\S+)\)", done.stdout)
    assert found, done.stdout
    factor, warmup, peak = float(found[1]), int(found[2]), float(found[3])
    assert peak == pytest.approx(factor * (16 * warmup) ** -0.5, rel=0.02)


def test_the_same_question_has_the_same_answer(ready: Lab) -> None:
    ask = ("stages.cli", "lr-find", "--updates", "30")
    first = ready.command(*ask).stdout
    before = ready.bytes_of("reports/lr-find")
    assert ready.command(*ask).stdout == first
    assert ready.bytes_of("reports/lr-find") == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from", "1", "--to", "0.1"], "command line: --from 1: expected less than --to 0.1"),
        (["--updates", "3"], "argument --updates: '3': expected a number from 20 to 100000"),
        (["--to", "-1"], "argument --to: '-1': expected a number > 0"),
    ],
)
def test_what_cannot_be_is_refused(ready: Lab, arguments: list[str], message: str) -> None:
    done = ready.command("stages.cli", "lr-find", *arguments)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_without_a_vocabulary_it_says_who_makes_it(small_lab: Lab) -> None:
    done = small_lab.command("stages.cli", "lr-find")
    assert (done.returncode, done.stderr) == (1, "error: data/vocab: not there; `dvc repro vocab` makes it\n")
