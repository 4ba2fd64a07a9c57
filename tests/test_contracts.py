"""What the parts of the repository owe each other."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

from stages import files
from stages.params import STAGE_PARAMS, parse_params, read_params_file
from tests.conftest import ROOT

PIPELINE = yaml.safe_load((ROOT / "dvc.yaml").read_text(encoding="utf-8"))["stages"]
STAGES = list(STAGE_PARAMS)
ABOVE = {*STAGES, "cli"}  # modules that the library never imports
RUNNER = "stages/studies/runner.py"  # calls the stages, as `dvc` does
MODULES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "stages").rglob("*.py"))


@cache
def tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def imported_names(file: str) -> Iterator[str]:
    """Every dotted name that a module imports, inside functions too."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield str(node.module)
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules_of(file: str) -> set[str]:
    """The modules of ours that a module imports; packages hold no code and are left out."""
    names = {f"{name.replace('.', '/')}.py" for name in imported_names(file)}
    return names & set(MODULES)


def resources_of(file: str) -> set[str]:
    """The other files beside a module that it names in a text."""
    folder = (ROOT / file).parent
    texts = {
        node.value for node in ast.walk(tree(file)) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    beside = {path for path in folder.iterdir() if path.is_file() and path.suffix != ".py"}
    return {path.relative_to(ROOT).as_posix() for path in beside if path.name in texts}


def reached_by(file: str) -> set[str]:
    found, new = set(), {file}
    while new:
        found |= new
        new = {module for reached in new for module in modules_of(reached)} - found
    return found | {resource for module in found for resource in resources_of(module)}


def test_dvc_yaml_has_the_stages_that_have_parameters() -> None:
    assert list(PIPELINE) == STAGES
    assert [PIPELINE[name]["cmd"] for name in STAGES] == [f"python -m stages.{name}" for name in STAGES]


@pytest.mark.parametrize("name", STAGES)
def test_the_deps_of_a_stage_are_what_it_imports(name: str) -> None:
    deps = PIPELINE[name]["deps"]
    listed = [dep for dep in deps if dep.startswith("stages/")]
    reached = reached_by(f"stages/{name}.py")
    assert sorted(dep for dep in listed if Path(dep).suffix) == sorted(reached)
    assert len(deps) == len(set(deps))


def test_the_committed_lock_is_of_this_code() -> None:
    """Who changes code or a default runs the pipeline and commits what came out: dvc.lock is read as the reference."""
    locked = yaml.safe_load((ROOT / "dvc.lock").read_text(encoding="utf-8"))["stages"]
    for stage in STAGE_PARAMS:
        for dep in locked[stage]["deps"]:
            if dep["path"].startswith("stages/"):
                assert dep["md5"] == files.md5_file(ROOT / dep["path"]), (
                    f"{dep['path']}: run `dvc repro`, commit dvc.lock"
                )
        raw = read_params_file(ROOT / "params.yaml")
        used = raw | locked[stage]["params"]["params.yaml"]
        assert parse_params(used) == parse_params(raw), "params.yaml: run `dvc repro`, commit dvc.lock"


def test_packages_hold_a_docstring_and_nothing_else() -> None:
    packages = [file for file in MODULES if file.endswith("__init__.py")]
    assert len(packages) == 10
    assert [file for file in packages if len(tree(file).body) != 1 or not ast.get_docstring(tree(file))] == []


def test_the_library_imports_no_stage_and_stages_do_not_import_each_other() -> None:
    above = {f"stages/{name}.py" for name in ABOVE}
    below = [file for file in MODULES if file != RUNNER]
    assert {file: modules_of(file) & above for file in below if modules_of(file) & above} == {}
    commands = {file for file in MODULES if file.startswith("stages/commands/")}
    users = {file for file in MODULES if modules_of(file) & commands}
    assert users <= {"stages/cli.py", *commands}


def test_mlflow_is_known_in_one_place() -> None:
    knowing = {file for file in MODULES for name in imported_names(file) if name.split(".")[0] == "mlflow"}
    assert knowing
    assert {file for file in knowing if not file.startswith("stages/tracking/")} == set()
    users = {file for file in MODULES for name in imported_names(file) if name.startswith("stages.tracking")}
    asking = ("stages/cli.py", "stages/track.py", "stages/studies/", "stages/commands/")
    assert {file for file in users if not file.startswith(("stages/tracking/", *asking))} == set()


def test_every_module_is_short_and_says_what_it_is() -> None:
    assert [file for file in MODULES if not ast.get_docstring(tree(file))] == []
    lengths = {file: len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in MODULES}
    assert {file: length for file, length in lengths.items() if length > 400} == {}


@pytest.mark.parametrize(
    ("name", "never"),
    [
        ("prepare", {"torch", "mlflow", "pandas", "matplotlib"}),
        ("vocab", {"torch", "mlflow", "pandas", "matplotlib"}),
        ("train", {"mlflow", "pandas", "matplotlib"}),
        ("evaluate", {"mlflow", "pandas", "matplotlib"}),
        ("plots", {"torch", "mlflow"}),
        ("cli", {"torch", "mlflow", "pandas", "matplotlib"}),
    ],
)
def test_a_stage_loads_no_more_than_it_needs(name: str, never: set[str]) -> None:
    script = f"import sys, stages.{name}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert f"stages.{name}" in loaded
    assert loaded & (never | {"matplotlib.pyplot"}) == set()


@pytest.mark.parametrize(
    "command",
    [["ruff", "check"], ["ruff", "format", "--check"], ["mypy"]],
    ids=["lint", "format", "types"],
)
def test_the_code_is_clean(command: list[str]) -> None:
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
