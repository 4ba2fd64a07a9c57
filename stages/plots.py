"""Stage plots: the figures of a run as PNG and SVG, and the report.

    python -m stages.plots      (as `dvc repro plots` does)

Reads reports/{history,validation,metrics,replicas,corpus}.json, data/evaluation and data/model (its configuration, and
of several replicas their curves); writes reports/figures and reports/index.html.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from safetensors import SafetensorError
from safetensors.numpy import load_file

from stages import files, paths
from stages.analysis import figures, fonts, heatmaps, report, seeds, style, truth_figures
from stages.analysis.attention import attention_statistics, attention_statistics_figure
from stages.analysis.outcome import TEXTS, diverged, headline, measure
from stages.errors import ArtifactError
from stages.optim.schedules import noam_rate
from stages.params import PlotsParams
from stages.stage import Stage, run

_CURVE_POINTS = 300
_UPDATE = ("step", "epoch", "lr", "loss", "grad_norm")
_MEASUREMENT = ("step", "epoch", "split", "loss", "perplexity", "accuracy")


def main() -> None:
    """Load, draw, save."""
    stage = Stage("plots", PlotsParams)

    history, validation = read_records(paths.HISTORY, _UPDATE), read_records(paths.VALIDATION, _MEASUREMENT)
    arrays = read_arrays(paths.EVALUATION / "attention.safetensors")
    attention = [arrays[f"prompt-{i}"] for i in range(len(arrays))]  # each [layers, heads, T, T]
    before = read_arrays(paths.EVALUATION / "attention_before.safetensors", missing_ok=True)
    facts = report.Run(
        config=files.read_json(paths.MODEL / "config.json"),
        replicas=files.read_json(paths.REPLICAS),
        metrics=files.read_json(paths.METRICS),
        corpus=files.read_json(paths.CORPUS_REPORT),
        agreement=read_if_there(paths.EVALUATION / "agreement.json"),
        next_words=files.read_json(paths.EVALUATION / "next_words.json"),
        updates=len(history),
        last_rate=float(history["lr"].iloc[-1]) if len(history) else None,
    )

    rates = noam_rates(stage.params.rate_d_model, stage.params.rate_warmups)
    drawn = style.all_rendered(
        chain(
            [("noam-rate", figures.noam_rate_figure(rates, d_model=stage.params.rate_d_model))],
            training_figures(history, validation, facts),
            replica_figures(validation, facts),
            evaluation_figures(facts),
            prompt_figures(facts, attention),
            figures_before(facts, attention, before),
        )
    )
    page = report.page(facts, {name: kinds["svg"] for name, kinds in drawn.items()})
    warn_of_unreadable(stage, facts)

    stage.check_inputs()
    with files.replacing_folder(paths.FIGURES) as folder:
        for name, kinds in drawn.items():
            for kind, content in kinds.items():
                files.write_bytes(folder / f"{name}.{kind}", content)
    files.write_text(paths.REPORT, page)
    stage.say(f"{len(drawn)} figures in {paths.FIGURES}, report in {paths.REPORT}")


def read_records(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    """A table of records; one without any, as of a run that diverged at its first update, has these columns."""
    records = files.read_json(path)
    return pd.DataFrame(records) if records else pd.DataFrame(columns=list(columns), dtype=float)


def read_if_there(path: Path) -> list[dict[str, Any]]:
    """A table that only some corpora have."""
    return list(files.read_json(path)) if path.is_file() else []


def read_arrays(path: Path, *, missing_ok: bool = False) -> dict[str, np.ndarray]:
    """The arrays of a file, by name; none where it may be missing and is.

    Raises:
        ArtifactError: the file is missing or damaged.
    """
    if missing_ok and not path.exists():
        return {}
    try:
        return load_file(path)
    except FileNotFoundError:
        raise ArtifactError(path, "not there; `dvc repro` makes it, `dvc checkout` restores it") from None
    except SafetensorError as error:
        raise ArtifactError(path, f"not readable ({error}); `dvc repro -f` makes it anew") from None


def noam_rates(d_model: int, warmups: list[int]) -> pd.DataFrame:
    """Noam's rate for each warm-up, to half as far again as the longest: columns warmup, step, rate."""
    last = 1.5 * max(warmups)
    rows = []
    for warmup in sorted(set(warmups)):
        steps = {max(1, round(step)) for step in np.linspace(1, last, _CURVE_POINTS)} | {warmup}
        rows += [(warmup, step, noam_rate(step, d_model, warmup)) for step in sorted(steps)]
    return pd.DataFrame(rows, columns=["warmup", "step", "rate"])


def training_figures(
    history: pd.DataFrame, validation: pd.DataFrame, facts: report.Run
) -> Iterator[tuple[str, Figure]]:
    """Loss, rate and gradient norm, each with its name."""
    name = f"{measured_text(validation)}, without dropout"
    floor = facts.metrics["train"].get("floor")
    ends = [replica["diverged_at"] for replica in diverged(facts.replicas)]
    yield "loss", figures.loss_figure(history, validation, validation_label=name, floor=floor, diverged=ends)
    yield "rate", figures.rate_figure(history)
    yield "gradient-norm", figures.gradient_norm_figure(history)


def measured_text(validation: pd.DataFrame) -> str:
    """What the measurements while training were made on."""
    held_out = len(validation) and validation["split"].iloc[0] == "valid"
    return "held-out text" if held_out else "training text"


def replica_figures(validation: pd.DataFrame, facts: report.Run) -> Iterator[tuple[str, Figure]]:
    """Of several replicas, each beside the others."""
    if len(facts.replicas) == 1:
        return
    records = []
    for seed in [replica["seed"] for replica in facts.replicas[: seeds.MAX_CURVES + 1]]:  # one more, to say so
        path = paths.MODEL / "replicas" / str(seed) / paths.VALIDATION.name
        records += [{**record, "seed": seed} for record in files.read_json(path)]
    curves = pd.DataFrame(records, columns=["seed", "step", "loss"])
    split = "valid" if "valid" in facts.replicas[0] else "train"
    rows = [(replica["seed"], replica[split]["loss"], replica.get("diverged_at")) for replica in facts.replicas]
    finals = pd.DataFrame(rows, columns=["seed", "loss", "diverged_at"])
    over = measure(facts.replicas, split, "loss")
    text = measured_text(validation)
    yield "replicas", seeds.replicas_figure(curves, validation, finals, over, text=text)


def evaluation_figures(facts: report.Run) -> Iterator[tuple[str, Figure]]:
    """Calibration on the text that counts most; and for a corpus of the grammar, the model beside it."""
    split = headline(facts.replicas)
    bins = pd.DataFrame(files.read_json(paths.EVALUATION / "calibration.json")[split])
    yield "calibration", figures.calibration_figure(bins, text=TEXTS[split])
    next_words = read_if_there(paths.EVALUATION / "truth.json")
    if next_words:
        yield "truth", truth_figures.truth_figure(pd.DataFrame(next_words))
    if facts.agreement:
        yield "agreement", truth_figures.agreement_figure(pd.DataFrame(facts.agreement))


def prompt_figures(facts: report.Run, attention: list[np.ndarray]) -> Iterator[tuple[str, Figure]]:
    """Next words, the overview of the heads and each head of each prompt; one token has no attention to show."""
    for i, (entry, weights) in enumerate(zip(facts.next_words, attention, strict=True)):  # [L, H, T, T]
        words = entry["tokens"]
        prompt = " ".join(words)
        yield f"next-words-p{i}", figures.next_words_figure(pd.DataFrame(entry["next"]), prompt=prompt)
        if len(words) == 1:
            continue
        yield f"attention-p{i}", heatmaps.overview_figure(weights, words, prompt=prompt)
        yield f"heads-p{i}", attention_statistics_figure(attention_statistics(weights), prompt=prompt)
        for layer, head in np.ndindex(*weights.shape[:2]):
            table = pd.DataFrame(weights[layer, head], index=words, columns=words)
            yield f"attention-p{i}-L{layer}H{head}", heatmaps.attention_figure(table, layer=layer, head=head)


def figures_before(
    facts: report.Run, attention: list[np.ndarray], before: dict[str, np.ndarray]
) -> Iterator[tuple[str, Figure]]:
    """How the attention of each prompt came about: the models kept on the way beside the last one, and each alone."""
    for i, (entry, last) in enumerate(zip(facts.next_words, attention, strict=True)):
        words, prompt = entry["tokens"], " ".join(entry["tokens"])
        own = {
            int(name.rpartition("/")[2]): weights for name, weights in before.items() if name.startswith(f"prompt-{i}/")
        }
        if not own:
            continue
        steps = sorted(own)
        shown = np.stack([*(own[step] for step in steps), last])
        name = f"attention-over-training-p{i}"
        yield name, heatmaps.attention_over_training_figure(shown, [*steps, facts.updates], words, prompt=prompt)
        for step in steps:
            yield f"step{step}-attention-p{i}", heatmaps.overview_figure(own[step], words, prompt=prompt)


def warn_of_unreadable(stage: Stage[PlotsParams], facts: report.Run) -> None:
    """One line for all characters that are drawn as codes."""
    words = [word for entry in facts.next_words for word in (*entry["tokens"], *(n["word"] for n in entry["next"]))]
    codes = [f"U+{ord(char):04X}" for char in fonts.unreadable(words)]
    if codes:
        shown = ", ".join(codes[:8]) + (f" and {len(codes) - 8} more" if len(codes) > 8 else "")
        stage.warn(f"no font for {shown}: the figures show the codes; the report and the tables have the characters")


if __name__ == "__main__":
    run(main)
