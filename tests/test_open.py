"""What a public repository says to those outside it: workflows, citation, the report on a pull request."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from tests.conftest import ROOT, script

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
SCHEMAS = {
    **{path.relative_to(ROOT).as_posix(): "github-workflows" for path in WORKFLOWS},
    ".github/dependabot.yml": "dependabot",
    "CITATION.cff": "citation-file-format",
}
ZIZMOR = [Path(sys.executable).with_name("zizmor"), "--offline", "--no-progress", "--quiet", "--pedantic"]


@pytest.fixture(scope="module")
def report() -> ModuleType:
    """The script, as a module."""
    return script("pull_request_report")


def fits(path: Path, schema: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", SCHEMAS)
def test_files_for_the_platform_fit_its_schemas(name: str, tmp_path: Path) -> None:
    done = fits(ROOT / name, SCHEMAS[name])
    assert done.returncode == 0, done.stdout + done.stderr
    broken = tmp_path / Path(name).name
    broken.write_text(re.sub(r"^(\w[\w-]*):", r"\1x:", (ROOT / name).read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert fits(broken, SCHEMAS[name]).returncode == 1


def test_workflows_are_safe_in_the_eyes_of_a_linter(tmp_path: Path) -> None:
    done = subprocess.run([*ZIZMOR, ROOT / ".github"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    unsafe = tmp_path / ".github/workflows/compare.yml"
    unsafe.parent.mkdir(parents=True)
    text = (ROOT / ".github/workflows/compare.yml").read_text(encoding="utf-8")
    unsafe.write_text(text.replace("  pull_request:", "  pull_request_target:"), encoding="utf-8")
    done = subprocess.run([*ZIZMOR, tmp_path / ".github"], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "dangerous-triggers" in done.stdout


def test_actions_are_pinned_and_tokens_are_narrow() -> None:
    assert [path.name for path in WORKFLOWS] == ["compare.yml", "tests.yml"]
    for path in WORKFLOWS:
        text = path.read_text(encoding="utf-8")
        used = re.findall(r"uses: (.*)", text)
        assert used
        assert [one for one in used if not re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", one)] == []
        workflow = yaml.safe_load(text)
        assert workflow["permissions"] == {}
        for job in workflow["jobs"].values():
            writing = [scope for scope, access in job["permissions"].items() if access == "write"]
            checked_out = [step for step in job["steps"] if "checkout" in step.get("uses", "")]
            assert not (writing and checked_out), "a job that may write runs code of the pull request"
            assert all(step["with"]["persist-credentials"] is False for step in checked_out)


def test_the_tests_run_on_the_versions_of_python_that_are_promised() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    matrix = yaml.safe_load(WORKFLOWS[1].read_text(encoding="utf-8"))["jobs"]["tests"]["strategy"]["matrix"]
    assert project["requires-python"] == f">={matrix['python'][0]}"


def test_the_citation_is_of_this_version() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == project["version"]
    assert citation["license"] == project["license"]
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert [one["title"] for one in citation["references"] if one["title"] not in readme] == []


def test_texts_of_others_are_shown_and_obeyed_by_nobody(report: ModuleType) -> None:
    row = report._table(["parameter", "base"], [["corpus", "a|b <img src=x> @somebody `x`\n| c |"]]).splitlines()[2]
    assert row.count(" | ") == 1
    assert "<img" not in row.replace("\\<", "")
    assert "@somebody" not in row
    assert "‹U+000A›" in row


def test_tables_and_the_report_have_a_longest_length(report: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    table = report._table(["metric", "base"], [[f"m{i}", "x" * 500] for i in range(100)])
    assert len(table.splitlines()) == 2 + 60 + 2
    assert table.endswith("\n\n40 more rows are left out.")
    assert "x" * 199 + "…" in table
    assert "x" * 200 not in table
    for name in ("metrics", "curves"):
        monkeypatch.setattr(report, name, lambda *_: "y" * 40_000)
    monkeypatch.setattr(report, "parameters", lambda *_: "No parameter changed.")
    monkeypatch.setattr(report, "comparison", lambda *_: "Nothing.")
    monkeypatch.setattr(report, "_fetch", lambda *_: "")
    text = report.report("a" * 40, "b" * 40)
    assert len(text) < 65_536
    assert "### Curves\n\nLeft out, for it has 40012 characters" in text
    assert text.endswith("### Comparison\n\nNothing.\n")


def drawn(points: list[dict[str, Any]]) -> dict[str, Any]:
    content = {"layer": [{"encoding": {"x": {"field": "step"}, "y": {"field": "loss"}}}]}
    anchors = {"<DVC_METRIC_TITLE>": "Loss", "<DVC_METRIC_DATA>": json.dumps(points)}
    return {"content": content, "anchor_definitions": anchors}


def test_a_curve_has_an_end_and_a_lowest_point_in_each_commit_and_split(report: ModuleType) -> None:
    points = [
        {"rev": rev, "step": step, "split": split, "loss": loss}
        for rev, split, losses in (("b", "train", [3, 1.5, 2]), ("h", "train", [4, None]), ("h", "valid", [5.0, 6.0]))
        for step, loss in enumerate(losses)
    ]
    assert report._curve(drawn(points), "b", "h") == [
        ["Loss (train)", "2", "1.5", "–", "4"],
        ["Loss (valid)", "–", "–", "6", "5"],
    ]
    only = [point for point in points if point["split"] == "valid"]
    assert report._curve(drawn(only), "b", "h") == [["Loss", "–", "–", "6", "5"]]


# Modules that exchange pickles with processes that they or the user have started (see .github/SECURITY.md).
PICKLING = {"stages/studies/remote.py"}


def test_no_module_loads_what_may_run_code() -> None:
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "stages").rglob("*.py")):
        name = path.relative_to(ROOT).as_posix()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if what := suspicious(node):
                found.setdefault(name, set()).add(what)
    assert {name: what for name, what in found.items() if what != {"pickle"} or name not in PICKLING} == {}


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("eval('1')", "eval"),
        ("import pickle", "pickle"),
        ("from joblib import load", "joblib"),
        ("torch.load(path, weights_only=True)", "torch.load"),
        ("np.load(path, allow_pickle=True)", "allow_pickle"),
        ("subprocess.run(words, shell=True)", "shell"),
        ("os.system('ls')", "os.system"),
        ("yaml.load(text)", "yaml.load"),
        ("yaml.load(text, Loader=yaml.UnsafeLoader)", "yaml.load"),
        ("archive.extractall(target)", "extractall"),
    ],
)
def test_what_may_run_code_is_recognised(line: str, what: str) -> None:
    assert {suspicious(node) for node in ast.walk(ast.parse(line))} - {None} == {what}


def test_yaml_is_read_with_safe_loaders() -> None:
    from stages.params import _UniqueKeys

    assert issubclass(_UniqueKeys, yaml.SafeLoader)


def suspicious(node: ast.AST) -> str | None:
    """What a piece of a program does that may run what a file says; None for anything else."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [str(node.module)]
        known = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
        return next((name for name in (module.partition(".")[0] for module in modules) if name in known), None)
    if not isinstance(node, ast.Call):
        return None
    name = ast.unparse(node.func)
    given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
    safe = ("SafeLoader", "_UniqueKeys")
    rules = {
        "eval": name in ("eval", "exec"),
        "torch.load": name == "torch.load",
        "os.system": name in ("os.system", "os.popen"),
        "shell": given.get("shell", "False") != "False",
        "allow_pickle": given.get("allow_pickle", "False") != "False",
        "yaml.load": name in ("yaml.load", "yaml.unsafe_load", "yaml.full_load")
        and not any(loader in given.get("Loader", "") for loader in safe),
        "extractall": name.endswith(".extractall") and given.get("filter") != "'data'",
    }
    return next((what for what, holds in rules.items() if holds), None)
