"""The stage plots: all files, the same bytes anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from stages import files, paths, plots
from stages.params import WITHOUT_EFFECT, TrainParams
from tests.conftest import ROOT, Lab

INPUTS = (
    paths.EVALUATION,
    paths.MODEL,
    paths.CORPUS_REPORT,
    paths.HISTORY,
    paths.METRICS,
    paths.REPLICAS,
    paths.VALIDATION,
)
PROMPTS = [["[bos]"], ["[bos]", "un", "गाय", "القطة", "小猫", "ᠮ"]]
CURVES = ["loss", "rate", "gradient-norm", "noam-rate", "calibration"]
PROMPT_FIGURES = [
    "next-words-p0",
    "next-words-p1",
    "attention-p1",
    "attention-p1-L0H0",
    "attention-p1-L0H1",
    "heads-p1",
]
OUTPUTS = {f"{name}.{kind}" for name in CURVES + PROMPT_FIGURES for kind in ("png", "svg")} | {"index.html"}
ABOUT = {"measured_on": "training text", "context": 512, "stride": 512, "counted_tokens": 48}
BINS = [{"low": i / 15, "high": (i + 1) / 15, "tokens": i, "confidence": i / 15, "accuracy": 0.5} for i in range(15)]
HOSTILE = """
backend: pdf
font.family: serif
font.size: 31
savefig.bbox: tight
svg.hashsalt: mine
text.usetex: True
"""


def inputs(folder: Path) -> None:
    """What the earlier stages would leave there."""
    records = [
        {"step": i, "epoch": 1, "lr": i * 1e-6, "loss": 3.0 - i / 100, "grad_norm": 1.0 + i % 5} for i in range(1, 91)
    ]
    measured = {"loss": 2.0, "perplexity": None, "accuracy": 0.5, "tokens": 48, "sentences": 9, "unknown_share": 0.0}
    training = TrainParams().model_dump(exclude=WITHOUT_EFFECT)
    config = {"model": {}, "training": training, "vocab_md5": "0", "updates": 90, "parameters": 5}
    words = [{"word": word, "probability": 0.5} for word in ("$x_1$", "<unk>")]
    next_words = [{"prompt": "", "tokens": tokens, "unknown": [], "next": words} for tokens in PROMPTS]
    weights = {
        f"prompt-{i}": np.tril(np.ones((1, 2, len(tokens), len(tokens)), dtype=np.float32))
        / np.arange(1, len(tokens) + 1, dtype=np.float32)[:, None]
        for i, tokens in enumerate(PROMPTS)
    }
    files.write_records(folder / paths.HISTORY, records)
    files.write_records(folder / paths.VALIDATION, [{"step": 0, "epoch": 0, "split": "train", "loss": 3.0}])
    files.write_json(folder / paths.METRICS, ABOUT | {"train": measured})
    files.write_json(folder / paths.REPLICAS, [{"seed": 0, "train": measured}])
    files.write_json(folder / paths.CORPUS_REPORT, {"file": "x.txt", "lines_read": 9})
    files.write_json(folder / paths.MODEL / "config.json", config)
    files.write_json(folder / paths.EVALUATION / "next_words.json", next_words)
    files.write_json(folder / paths.EVALUATION / "calibration.json", {"train": BINS})
    save_file(weights, folder / paths.EVALUATION / "attention.safetensors")
    listed = "".join(f"\n    - {path.as_posix()}" for path in INPUTS)
    files.write_text(folder / paths.PIPELINE, f"stages:\n  plots:\n    cmd: x\n    deps:{listed}\n")
    files.write_bytes(folder / paths.PARAMS, (ROOT / paths.PARAMS).read_bytes())


def draw(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the stage in a process of its own, in a folder with these inputs."""
    inputs(folder)
    return run_stage(folder, **environment)


def run_stage(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the stage in a process of its own on the inputs that lie there."""
    kept = ("PATH", "HOME", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
    variables = {key: os.environ[key] for key in kept if key in os.environ}
    variables |= {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error::UserWarning", **environment}
    return subprocess.run(
        [sys.executable, "-m", "stages.plots"], cwd=folder, env=variables, capture_output=True, encoding="utf-8"
    )


def outputs(folder: Path) -> dict[str, bytes]:
    found = [*(folder / paths.FIGURES).iterdir(), folder / paths.REPORT]
    return {path.name: path.read_bytes() for path in found}


def test_the_same_inputs_give_the_same_bytes_anywhere(tmp_path: Path) -> None:
    here, there = tmp_path / "a", tmp_path / "otra carpeta, más ñandú"
    files.write_text(there / "matplotlibrc", HOSTILE)
    first = draw(here, LC_ALL="C.UTF-8", TZ="UTC", PYTHONHASHSEED="0")
    second = draw(
        there,
        LC_ALL="tr_TR.UTF-8",
        TZ="Asia/Kathmandu",
        PYTHONHASHSEED="4242",
        MPLBACKEND="pdf",
        DISPLAY=":77",
        SOURCE_DATE_EPOCH="1",
        MATPLOTLIBRC=str(there / "matplotlibrc"),
        PYTHONUTF8="0",
        PYTHONIOENCODING="utf-8",
    )
    assert (first.returncode, first.stderr.count("warning")) == (0, 1), first.stderr
    assert second.returncode == 0, second.stderr
    assert second.stderr == first.stderr
    assert "U+182E" in first.stderr  # the one character without a font
    ours, theirs = outputs(here), outputs(there)
    assert set(ours) == OUTPUTS
    assert [name for name in ours if ours[name] != theirs.get(name)] == []
    assert not any(str(tmp_path).encode() in content for content in ours.values())


def test_figures_of_an_earlier_run_do_not_stay(tmp_path: Path) -> None:
    files.write_text(tmp_path / paths.FIGURES / "attention-p9-L9H9.png", "old")
    assert draw(tmp_path).returncode == 0
    assert "attention-p9-L9H9.png" not in outputs(tmp_path)


def test_a_corpus_of_the_grammar_has_figures_of_its_own(tmp_path: Path) -> None:
    inputs(tmp_path)
    words = [{"prompt": "", "word": word, "truth": share, "model": share} for word, share in (("el", 0.7), ("la", 0.3))]
    group = {"feature": "number", "items": 9, "right": 6, "accuracy": 2 / 3, "low": 0.4, "high": 0.9}
    table = [group | {"by": "all", "value": None}, *(group | {"by": "distance", "value": i} for i in range(3))]
    files.write_json(tmp_path / paths.EVALUATION / "truth.json", words)
    files.write_json(tmp_path / paths.EVALUATION / "agreement.json", table)
    truth = dict.fromkeys(("loss", "true_loss", "excess", "excess_error", "entropy", "agreement_number"), 0.9)
    (replica,) = files.read_json(tmp_path / paths.REPLICAS)
    files.write_json(
        tmp_path / paths.REPLICAS,
        [replica | {"truth": truth | {"agreement_gender": None, "tokens": 9, "sentences": 3}}],
    )
    done = run_stage(tmp_path)
    assert done.returncode == 0, done.stderr
    assert set(outputs(tmp_path)) == OUTPUTS | {
        f"{name}.{kind}" for name in ("truth", "agreement") for kind in ("png", "svg")
    }
    assert "Against the grammar" in (tmp_path / paths.REPORT).read_text(encoding="utf-8")


def test_replicas_have_their_figure_and_the_report_has_it(small_lab: Lab) -> None:
    small_lab.set(replicas=3, seed=5)
    small_lab.run("prepare", "vocab", "train", "evaluate", "plots")
    assert (small_lab.folder / paths.FIGURES / "replicas.png").is_file()
    page = (small_lab.folder / paths.REPORT).read_text(encoding="utf-8")
    assert "3 seeds, 5 to 7" in page
    found = [replica["train"]["loss"] for replica in small_lab.read("reports/replicas.json")]
    assert all(f"{loss:.4f}" in page for loss in [*found, sum(found) / 3])
    once = small_lab.bytes_of("reports")
    small_lab.run("plots")
    assert small_lab.bytes_of("reports") == once


def test_models_kept_on_the_way_are_drawn(tmp_path: Path) -> None:
    inputs(tmp_path)
    last = load_file(tmp_path / paths.EVALUATION / "attention.safetensors")["prompt-1"]
    before = {f"prompt-1/{step}": np.ascontiguousarray(last) for step in (0, 9, 45)}
    save_file(before, tmp_path / paths.EVALUATION / "attention_before.safetensors")
    done = run_stage(tmp_path)
    assert done.returncode == 0, done.stderr
    added = ["attention-over-training-p1", *(f"step{step}-attention-p1" for step in (0, 9, 45))]
    assert set(outputs(tmp_path)) == OUTPUTS | {f"{name}.{kind}" for name in added for kind in ("png", "svg")}
    assert "at several times of the training" in (tmp_path / paths.REPORT).read_text(encoding="utf-8")


def test_a_run_that_diverged_at_once_has_all_its_figures(tmp_path: Path) -> None:
    """As the stages before leave it: no update, no finite number, the measurement before the first update."""
    inputs(tmp_path)
    last = {"step": 0, "epoch": 0, "split": "train", "loss": 9.9542, "perplexity": 21039.5, "accuracy": 0.2}
    nothing = {"loss": None, "perplexity": None, "accuracy": 0.0, "tokens": 48, "sentences": 9, "unknown_share": 0.0}
    files.write_records(tmp_path / paths.HISTORY, [])
    files.write_records(tmp_path / paths.VALIDATION, [last])
    replica = {"seed": 0, "diverged_at": 1, "last_finite": last, "train": nothing | {"floor": 0.4, "excess": None}}
    files.write_json(tmp_path / paths.REPLICAS, [replica])
    files.write_json(tmp_path / paths.METRICS, ABOUT | {"train": replica["train"]})
    files.write_json(tmp_path / paths.EVALUATION / "calibration.json", {"train": []})
    words = files.read_json(tmp_path / paths.EVALUATION / "next_words.json")
    for entry in words:
        entry["next"] = [{"word": word["word"], "probability": None} for word in entry["next"]]
    files.write_json(tmp_path / paths.EVALUATION / "next_words.json", words)
    weights = {f"prompt-{i}": np.full((1, 2, len(t), len(t)), np.nan, dtype=np.float32) for i, t in enumerate(PROMPTS)}
    save_file(weights, tmp_path / paths.EVALUATION / "attention.safetensors")
    done = run_stage(tmp_path)
    assert done.returncode == 0, done.stderr
    assert set(outputs(tmp_path)) == OUTPUTS
    assert b"<!-- diverged at update 1 -->" in outputs(tmp_path)["loss.svg"]
    assert "Diverged at update 1:" in (tmp_path / paths.REPORT).read_text(encoding="utf-8")


@pytest.mark.parametrize("content", [b"", b"not safetensors at all"], ids=["empty", "text"])
def test_damaged_attention_is_one_message(tmp_path: Path, content: bytes) -> None:
    inputs(tmp_path)
    path = tmp_path / paths.EVALUATION / "attention.safetensors"
    path.write_bytes(content)
    with pytest.raises(plots.ArtifactError, match=r"attention\.safetensors: not readable .*dvc repro"):
        plots.read_arrays(path)
    path.unlink()
    with pytest.raises(plots.ArtifactError, match="not there"):
        plots.read_arrays(path)


def test_noam_rates_are_those_of_the_paper_and_hit_the_peaks() -> None:
    table = plots.noam_rates(256, [4000, 2000, 4000])
    assert sorted(table["warmup"].unique()) == [2000, 4000]
    peak = table[(table["warmup"] == 4000)].set_index("step")["rate"]
    assert peak.idxmax() == 4000
    assert peak.max() == pytest.approx(9.882118e-04, rel=1e-6)
    assert peak[1] == pytest.approx(2.470529e-07, rel=1e-6)
    assert table["step"].max() == 6000


def test_the_stage_imports_neither_torch_nor_mlflow() -> None:
    code = "import sys, stages.plots; print(sorted({'torch', 'mlflow', 'matplotlib.pyplot'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
