"""Where the store is said to be, and who may say so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from stages.cli import main
from stages.errors import TrackingError
from stages.tracking import address
from stages.tracking.store import tracking_uri

TEAM, OTHER = "https://lab.example.org", "http://127.0.0.1:5000"


def test_the_environment_wins_over_the_project_and_that_over_the_default(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert address.configured() is None
    assert tracking_uri() == f"sqlite:///{workspace}/mlflow.db"
    file = workspace / ".runstate/config.json"
    assert address.set_for_project(f" {TEAM}\n") == address.Setting(TEAM, str(file))
    assert tracking_uri() == TEAM
    monkeypatch.setenv("MLFLOW_TRACKING_URI", OTHER)
    assert address.configured() == address.Setting(OTHER, "MLFLOW_TRACKING_URI")
    assert tracking_uri() == OTHER
    monkeypatch.setenv("MLFLOW_TRACKING_URI", " ")
    assert tracking_uri() == TEAM
    assert [path.name for path in file.parent.iterdir()] == ["config.json"]
    assert address.unset_for_project()
    assert not address.unset_for_project()
    assert tracking_uri() == f"sqlite:///{workspace}/mlflow.db"


def test_a_queued_experiment_has_the_setting_of_its_main_workspace(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address.set_for_project(TEAM)
    copy = workspace / ".dvc/tmp/exps/standalone/tmpx"
    copy.mkdir(parents=True)
    monkeypatch.chdir(copy)
    assert tracking_uri() == TEAM
    address.set_for_project("sqlite:///runs.db")
    assert tracking_uri() == f"sqlite:///{workspace}/runs.db"
    assert not list(copy.iterdir())


@pytest.mark.parametrize(
    "given",
    [
        "http://127.0.0.1:5000",
        "http://[::1]:5000/prefix/",
        "https://lab.example.org",
        "sqlite:///runs of mine.db",
        "sqlite:////tmp/más/runs.db",
        "postgresql://ana@db.example.org:5432/mlflow",
        "postgresql+psycopg://ana@db.example.org/mlflow",
        "mysql+pymysql://db.example.org/mlflow",
    ],
)
def test_addresses_of_stores(given: str) -> None:
    assert address.check(given, "store") == given


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("lab.example.org:5000", "'lab.example.org:5000' has no scheme; allowed are http://HOST:PORT, "),
        ("./mlruns", "'./mlruns' has no scheme; allowed are http://HOST:PORT, "),
        ("", "'' has no scheme"),
        ("htp://lab.example.org", "'htp://lab.example.org' has an unknown scheme; allowed are http://HOST:PORT, "),
        ("file:///tmp/mlruns", "has an unknown scheme; allowed are"),
        ("http+x://lab.example.org", "has an unknown scheme; allowed are"),
        ("http://lab example.org", "has a space in it"),
        ("http://lab.example.org\n", "has a space in it"),
        ("http://", "names no host"),
        ("http://lab:port", "names no host, or its port is no number"),
        ("http://[::1", "names no host, or its port is no number"),
        ("http://lab:5000/#/experiments/1", "is the address of a page; give the part before '?' and '#'"),
        ("http://ana:hush@lab:5000", "'http://…@lab:5000' holds a user or a password"),
        ("http://ana@lab:5000", "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or in ~/.mlflow/credentials"),
        ("http://ana:hush/x@lab", "'http://…@lab' holds a user or a password"),
        ("postgresql://ana:hush/x@lab/mlflow", "'postgresql://…@lab/mlflow' names no host, or its port is no number"),
        ("postgresql://ana:hush@lab/mlflow", "'postgresql://…@lab/mlflow' holds a password"),
        ("postgresql://ana@lab", "names no database"),
        ("sqlite://", "names no file; a database of SQLite is sqlite:///FILE"),
        ("sqlite:///", "names no file"),
        ("sqlite://runs.db", "names no file"),
    ],
)
def test_other_addresses_are_refused_and_no_password_is_shown(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, given: str, words: str
) -> None:
    with pytest.raises(TrackingError) as raised:
        address.check(given, "store")
    message = str(raised.value)
    assert message.startswith("store: ")
    assert "hush" not in message
    assert words in message
    assert "\n" not in message
    if given.strip() == given and given:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", given)
        with pytest.raises(TrackingError, match=r"^MLFLOW_TRACKING_URI: "):
            tracking_uri()


@pytest.mark.parametrize("content", ["{", "[]", '"x"', "\x00"])
def test_a_damaged_setting_is_named_and_can_be_removed(workspace: Path, content: str) -> None:
    file = address.config_file()
    file.parent.mkdir(exist_ok=True)
    file.write_text(content, encoding="utf-8")
    with pytest.raises(TrackingError, match="`noam config --unset store` removes it") as raised:
        tracking_uri()
    assert str(file) in str(raised.value)
    assert address.unset_for_project()
    assert tracking_uri().startswith("sqlite:///")


class TestCommand:
    """`noam config`."""

    @pytest.fixture(autouse=True)
    def _here(self, workspace: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.workspace, self.patch, self.capsys = workspace, monkeypatch, capsys

    def noam(self, *arguments: str) -> tuple[int, str, str]:
        self.patch.setattr(sys, "argv", ["noam", "config", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        return (int(end.value.code or 0), *self.capsys.readouterr())

    def test_it_shows_what_counts_and_who_says_so(self) -> None:
        default = f"store  sqlite:///{self.workspace}/mlflow.db  (the default: a database in {self.workspace})\n"
        file = self.workspace / ".runstate/config.json"
        assert self.noam() == (0, default, "")
        assert self.noam("store", TEAM) == (0, f"store  {TEAM}  ({file})\n", "")
        assert self.noam("store") == (0, f"store  {TEAM}  ({file})\n", "")
        self.patch.setenv("MLFLOW_TRACKING_URI", OTHER)
        note = f"note: MLFLOW_TRACKING_URI wins over {TEAM} in {file}\n"
        assert self.noam() == (0, f"store  {OTHER}  (MLFLOW_TRACKING_URI)\n", note)
        assert self.noam("--unset", "store") == (0, f"store  {OTHER}  (MLFLOW_TRACKING_URI)\n", "")
        self.patch.delenv("MLFLOW_TRACKING_URI")
        assert self.noam("--unset", "store") == (0, f"store is not set here: there is no {file}\n{default}", "")

    def test_a_bad_address_changes_nothing(self) -> None:
        self.noam("store", TEAM)
        before = address.config_file().read_bytes()
        code, out, err = self.noam("store", "http://ana:hush@lab")
        assert (code, out, err.count("\n")) == (1, "", 1)
        assert err.startswith("error: store: 'http://…@lab' holds a user or a password")
        assert address.config_file().read_bytes() == before
        assert self.noam("shop", TEAM)[0] == 2
        assert self.noam("--unset", "shop")[0] == 2

    def test_it_loads_no_mlflow(self) -> None:
        script = "import sys; sys.argv = ['noam', 'config']; from stages.cli import main\ntry: main()\n"
        script += "finally: assert not {'mlflow', 'torch', 'requests'} & sys.modules.keys()"
        subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)
