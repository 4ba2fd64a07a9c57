"""The prepared views: what the tag says, and what a browser makes of it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from stages.errors import TrackingError
from stages.tracking.server import free_port
from stages.tracking.store import Store, connect
from stages.tracking.studies import send_study
from stages.tracking.view import CURVES, PICTURES, decode, encode, refresh_view, studies_of, view_links, view_state
from tests.tracking.lab import wait_until
from tests.tracking.test_studies import finish, study_run, write_report

SERVE = (
    "import signal, sys; from stages.tracking.server import serve; "
    "signal.signal(signal.SIGINT, signal.default_int_handler); "  # ignored where the tests run in the background
    "sys.exit(serve(int(sys.argv[1])))"
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
QUIET = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --window-size=2400,3600 --virtual-time-budget=60000 --dump-dom"
)


@pytest.fixture
def six_runs(store: Store, workspace: Path) -> Store:
    """Two warm-ups with a run for each of two seeds, and a third one with two replicas."""
    for warmup in (400, 4000):
        for seed in (0, 1):
            finish(workspace, store, warmup=warmup, seed=seed)
    finish(workspace, store, warmup=40, seed=0, replicas=2)
    refresh_view(store)
    return store


@pytest.fixture
def study(six_runs: Store, workspace: Path) -> Store:
    """The same, and a study of two variants with two replicas each, which differ in a number and in a word."""
    differ: dict[str, dict[str, int | str]] = {
        "warmup=80": {"warmup": 80},
        "warmup=800": {"warmup": 800, "loss": "notebook"},
    }
    made = {name: finish(workspace, six_runs, seed=10, replicas=2, **params) for name, params in differ.items()}
    write_report(workspace / "reports/studies/toy", made, [10, 11])
    send_study(six_runs, workspace / "reports/studies/toy")
    refresh_view(six_runs)
    return six_runs


class Server:
    """`noam ui` under way."""

    def __init__(self, process: subprocess.Popen[str], output: Path) -> None:
        self.process, self.output = process, output

    def said(self) -> str:
        return self.output.read_text(encoding="utf-8")

    def links(self) -> list[str]:
        return re.findall(r"http://\S+", self.said())


@pytest.fixture
def server(workspace: Path, tmp_path: Path) -> Iterator[Server]:
    """The pages of the workspace; the port that was asked for is busy."""
    output = tmp_path / "ui.txt"
    with socket.socket() as busy, open(output, "wb") as file:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = str(busy.getsockname()[1])
        with subprocess.Popen([sys.executable, "-c", SERVE, port], stdout=file, stderr=file, text=True) as process:
            try:
                wait_until(lambda: "Ctrl-C" in output.read_text(encoding="utf-8") or process.poll() is not None, 150)
                yield Server(process, output)
            finally:
                if process.poll() is None:
                    process.terminate()


def page(link: str, folder: Path) -> str:
    """The page at a link, as a browser has drawn it after a while."""
    if CHROMIUM is None:
        pytest.skip("no Chromium here to look at the page with")
    command = [CHROMIUM, *QUIET.split(), f"--user-data-dir={folder}", link]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=240).stdout


def axes_of(seen: str) -> list[str]:
    """The axes of the parallel coordinates on a page."""
    return re.findall(r'class="label">([^<]+)<', seen[seen.index('class="parcoords"') :])


def test_a_state_survives_the_tag() -> None:
    state = {"text": "ñ 損", "list": [1, None, True]}
    assert encode(state).startswith("deflate;")
    assert decode(encode(state)) == state


def test_the_views_are_on_the_experiment(six_runs: Store) -> None:
    tags = six_runs.client.get_experiment(six_runs.experiment_id).tags
    curves = decode(tags[f"mlflow.sharedViewState.{CURVES}"])
    scales = {chart["metricKey"]: chart["scaleType"] for chart in curves["compareRunCharts"] if chart["type"] == "LINE"}
    assert {key: scales[key] for key in ("train/loss", "optim/lr", "eval/train_loss", "eval/train_accuracy")} == {
        "train/loss": "log",
        "optim/lr": "log",
        "eval/train_loss": "log",
        "eval/train_accuracy": "linear",
    }
    bars = {chart["metricKey"]: chart["deleted"] for chart in curves["compareRunCharts"] if chart["type"] == "BAR"}
    logged = {key for run in six_runs.runs() for key in run.data.metrics if key.startswith(("final/", "summary/"))}
    assert logged <= bars.keys()  # MLflow would add a chart for each metric that has none
    assert all(bars[key] for key in logged if key.startswith("summary/"))
    assert not bars["final/train_loss"]
    assert curves["groupBy"]["groupByKeys"] == [{"mode": "param", "groupByData": "warmup"}]
    sections = {section["uuid"] for section in curves["compareRunSections"]}
    assert {chart["metricSectionId"] for chart in curves["compareRunCharts"]} == sections
    assert len({chart["uuid"] for chart in curves["compareRunCharts"]}) == len(curves["compareRunCharts"])

    pictures = decode(tags[f"mlflow.sharedViewState.{PICTURES}"])
    assert pictures["groupBy"] is None
    grid = [chart["imageKeys"] for chart in pictures["compareRunCharts"] if chart["type"] == "IMAGE"]
    assert grid[0] == ["attention/p0-L0H0", "attention/p0-L0H1", "attention/p1-L0H0", "attention/p1-L0H1"]


def test_the_page_links_to_the_views_until_the_user_writes_a_note(store: Store) -> None:
    refresh_view(store)
    note = store.client.get_experiment(store.experiment_id).tags["mlflow.note.content"]
    assert f"[curves by warm-up](#/experiments/{store.experiment_id}/runs?" in note
    store.client.set_experiment_tag(store.experiment_id, "mlflow.note.content", "mine")
    refresh_view(store)
    assert store.client.get_experiment(store.experiment_id).tags["mlflow.note.content"] == "mine"


def test_a_study_has_views_and_links_until_its_run_is_deleted(study: Store) -> None:
    tags = study.client.get_experiment(study.experiment_id).tags
    curves, pictures = (decode(tags[f"mlflow.sharedViewState.study-toy{end}"]) for end in ("", "-pictures"))
    assert curves["groupBy"]["groupByKeys"] == [{"mode": "tag", "groupByData": "noam.study.toy"}]
    assert pictures["groupBy"] is None
    shown = [
        study.client.search_runs([study.experiment_id], view["searchFilter"], order_by=[view["orderByKey"]])
        for view in (curves, pictures)
    ]
    assert [run.info.run_name.partition(" · d_model")[0] for run in shown[0]] == [
        *("warmup=80 · seed=10", "warmup=800 · seed=10", "warmup=80 · seed=11", "warmup=800 · seed=11"),
        *("warmup=80 · seeds 10–11", "warmup=800 · seeds 10–11"),
    ]
    assert [run.data.tags["noam.role"] for run in shown[1]] == ["summary", "summary"]

    drawn = {chart["type"]: chart for chart in curves["compareRunCharts"] if chart["type"] in ("PARALLEL", "SCATTER")}
    assert drawn["PARALLEL"]["selectedParams"] == []  # of groups MLflow knows no text
    assert drawn["PARALLEL"]["selectedMetrics"] == ["study/warmup_log10", "final/train_loss"]
    assert (drawn["SCATTER"]["xaxis"]["key"], drawn["SCATTER"]["yaxis"]["key"]) == (
        "study/warmup_log10",
        "final/train_loss",
    )
    (parallel,) = [chart for chart in pictures["compareRunCharts"] if chart["type"] == "PARALLEL"]
    assert parallel["selectedParams"] == ["loss"]
    assert parallel["selectedMetrics"] == ["study/warmup_log10", "summary/train_loss"]

    logged = [{key for run in found for key in run.data.metrics} for found in (study.runs(), shown[0], shown[1])]
    default = [decode(tags[f"mlflow.sharedViewState.{key}"]) for key in (CURVES, PICTURES)]
    for view, keys in ((default[0], logged[0]), (default[1], logged[0]), (curves, logged[1]), (pictures, logged[2])):
        charts = {chart["metricKey"]: chart for chart in view["compareRunCharts"] if "metricKey" in chart}
        assert keys - {"optim/update_norm"} <= charts.keys()
        assert all(charts[key]["deleted"] for key in keys if key.startswith("study/"))
        assert {chart["metricSectionId"] for chart in view["compareRunCharts"]} == {
            section["uuid"] for section in view["compareRunSections"]
        }

    address = f"#/experiments/{study.experiment_id}/runs?workflowType=machine_learning&viewStateShareKey=study-toy"
    assert f"[study toy]({address}&compareRunsMode=CHART)" in tags["mlflow.note.content"]
    links = view_links("http://x", study.experiment_id, studies_of(study))
    assert links["study toy"] == f"http://x/{address}&compareRunsMode=CHART"
    assert list(links)[4:] == ["study toy", "study toy, attention", "study toy, next words"]

    study.client.delete_run(study_run(study).info.run_id)
    refresh_view(study)
    tags = study.client.get_experiment(study.experiment_id).tags
    assert not [key for key in tags if "study" in key]
    assert "study" not in tags["mlflow.note.content"]


def test_a_note_without_studies_of_an_earlier_version_is_renewed(study: Store) -> None:
    plain = view_links("", study.experiment_id)
    listed = " · ".join(f"[{title}]({link.removeprefix('/')})" for title, link in plain.items())
    study.client.delete_experiment_tag(study.experiment_id, "noam.note")
    note = f"Language models under the Noam optimiser: {listed}"
    study.client.set_experiment_tag(study.experiment_id, "mlflow.note.content", note)
    refresh_view(study)
    assert "study toy" in study.client.get_experiment(study.experiment_id).tags["mlflow.note.content"]


def test_the_tag_stays_within_the_limit_of_mlflow() -> None:
    images = [f"attention/p{p}-L{layer}H{head}" for p in range(4) for layer in range(6) for head in range(8)]
    assert len(encode(view_state(grouped=False, images=images))) < 20_000


def test_a_busy_port_is_passed_over() -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        assert free_port(port) > port
    assert free_port(port) == port


def test_no_port_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        monkeypatch.setattr("stages.tracking.server._OTHER_PORTS", 1)
        with pytest.raises(TrackingError, match="are busy; choose another with --port"):
            free_port(busy.getsockname()[1])


def test_pages_without_any_run_a_busy_port_and_the_end(workspace: Path, server: Server) -> None:
    said = server.said()
    asked, taken = re.findall(r"port (\d+) is busy; taking (\d+) instead", said)[0]
    links = server.links()
    assert list(view_links(f"http://127.0.0.1:{taken}", connect().experiment_id).values()) == links
    with urllib.request.urlopen(f"http://127.0.0.1:{taken}/health", timeout=5) as answer:
        assert answer.status == 200
    remote = {**os.environ, "MLFLOW_TRACKING_URI": f"http://127.0.0.1:{taken}"}  # its links, and no server of our own
    pointed = subprocess.run(
        [sys.executable, "-c", SERVE, "5000"], env=remote, capture_output=True, text=True, check=True
    )
    assert pointed.stdout.startswith("the runs are on the server that MLFLOW_TRACKING_URI names\n")
    assert re.findall(r"http://\S+", pointed.stdout) == links

    family = psutil.Process(server.process.pid).children(recursive=True)
    assert 1 <= len(family) <= 3

    server.process.send_signal(signal.SIGINT)
    assert server.process.wait(25) == 0
    assert not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in family)
    assert free_port(int(taken)) == int(taken)
    assert asked != taken
    assert not (workspace / "mlruns").exists()


def test_a_browser_shows_curves_and_pictures(study: Store, server: Server, tmp_path: Path) -> None:
    curves, pictures, _, _, of_study, pictures_of_study, words_of_study = server.links()
    seen = page(curves, tmp_path / "profile")
    for text in (
        "Group: 40<",
        "Group: 400<",
        "Group: 4000<",
        "eval/train_loss",
        "window/loss_max",
        "optim/lr",
        "final/train_excess",
    ):
        assert text in seen, text
    rate = seen[seen.index("optim/lr") :]
    ticks = re.findall(r'class="ytick"><text[^>]*>([^<]+)<', rate[: rate.index("optim/grad_norm")])
    assert [tick for tick in ticks if tick in ("0.000001", "1μ")], ticks
    assert [tick for tick in ticks if tick in ("0.00001", "10μ")], ticks
    assert 'class="js-fill"' in seen  # the band over the seeds
    assert "seeds 0–1" in seen
    assert "summary" not in seen[seen.index("final/train_loss") :]  # no chart counts the mean among the replicas

    seen = page(pictures, tmp_path / "profile")
    shown = re.findall(r'<img[^>]+src="(get-artifact\?path=images[^"]+)"', seen)
    assert len({link.partition("run_uuid=")[2] for link in shown}) == 7  # of the replicas the summary's
    with urllib.request.urlopen(pictures.partition("#")[0] + shown[0].replace("&amp;", "&"), timeout=10) as answer:
        assert answer.read(4) == b"RIFF"

    seen = page(of_study, tmp_path / "profile")
    assert "Group: warmup=80<" in seen
    assert "Group: warmup=800<" in seen
    assert "Group: 40<" not in seen
    assert 'class="js-fill"' in seen
    assert "study/warmup_log10 vs. final/train_loss" in seen
    assert axes_of(seen) == ["study/warmup_log10", "final/train_loss"]

    seen = page(pictures_of_study, tmp_path / "profile")
    shown = re.findall(r'<img[^>]+src="get-artifact\?path=images[^"]+run_uuid=([^"]+)"', seen)
    assert len(set(shown)) == 2
    assert axes_of(seen) == ["loss", "study/warmup_log10", "summary/train_loss"]

    seen = page(words_of_study, tmp_path / "profile")
    assert seen.count("[bos] un gato come") >= 1
    assert "seeds 10–11" in seen
