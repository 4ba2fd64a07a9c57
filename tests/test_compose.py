"""The files for those who have Docker, checked by what reads such files; there is no engine here to start them with."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from stages.tracking.team_server import DEFAULT_PERMISSION
from tests.conftest import ROOT

FOLDER = ROOT / ".docker"
TEXT = (FOLDER / "compose.yaml").read_text(encoding="utf-8")
SERVICES: dict[str, Any] = yaml.safe_load(TEXT)["services"]
VARIABLE = re.compile(r"(?<!\$)\$\{(\w+)(?:(:?[-?+])([^}]*))?\}")
SECRETS = {"POSTGRES_PASSWORD", "S3_ACCESS_KEY", "S3_SECRET_KEY", "MLFLOW_ADMIN_PASSWORD", "MLFLOW_SECRET_KEY"}


def example() -> dict[str, str]:
    lines = (FOLDER / ".env.example").read_text(encoding="utf-8").splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {name: value for name, _, value in pairs}


def interpolated(values: dict[str, str]) -> str:
    """The file as Compose reads it: https://docs.docker.com/reference/compose-file/interpolation/.

    Raises:
        ValueError: a required variable is missing or empty.
    """

    def value(found: re.Match[str]) -> str:
        name, operator, rest = found.groups()
        given = values.get(name, "")
        if operator == ":?" and not given:
            raise ValueError(f"required variable {name} is missing a value: {rest}")
        return given or (rest if operator == ":-" else "")

    return VARIABLE.sub(value, TEXT)


SCHEMA = ["-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
STYLE = "{extends: default, rules: {line-length: {max: 120}, document-start: disable}}"
HADOLINT = "import os, sysconfig; os.execv(sysconfig.get_path('scripts') + '/hadolint', ['hadolint', 'Dockerfile'])"


@pytest.mark.parametrize(
    "command",
    [
        [*SCHEMA, "compose.yaml"],
        ["-m", "yamllint", "--strict", "--config-data", STYLE, "compose.yaml"],
        ["-c", HADOLINT],
    ],
    ids=["compose", "yaml", "dockerfile"],
)
def test_the_linters_find_nothing(command: list[str]) -> None:
    done = subprocess.run([sys.executable, *command], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_linters_look(tmp_path: Path) -> None:
    broken = tmp_path / "compose.yaml"
    broken.write_text(TEXT.replace("depends_on:", "depends_upon:"), encoding="utf-8")
    assert subprocess.run([sys.executable, *SCHEMA, str(broken)], capture_output=True, check=False).returncode == 1


def test_the_example_names_every_variable_and_no_other() -> None:
    assert {name for name, *_ in VARIABLE.findall(TEXT)} == example().keys()


def test_no_secret_has_a_default_and_the_example_as_it_is_starts_nothing() -> None:
    uses = VARIABLE.findall(TEXT)
    assert {name for name, operator, _ in uses if operator == ":?"} == SECRETS
    assert {name for name, operator, _ in uses if operator != ":?"} == {"MLFLOW_HOST_NAME", "MLFLOW_PORT"}
    given = {name: f"{name}-given" for name in SECRETS}
    assert yaml.safe_load(interpolated(given))["services"]["mlflow"]["ports"] == ["127.0.0.1:5000:5000"]
    with pytest.raises(ValueError, match="required variable"):
        interpolated(example())
    for name in SECRETS:
        assert example()[name] == ""
        with pytest.raises(ValueError, match=f"required variable {name} "):
            interpolated(given | {name: example()[name]})


def test_secrets_are_told_by_variables_that_the_programs_read() -> None:
    environment = SERVICES["mlflow"]["environment"]
    assert environment["MLFLOW_AUTH_ADMIN_PASSWORD"].startswith("${MLFLOW_ADMIN_PASSWORD:?")
    assert environment["PGPASSWORD"] == SERVICES["postgres"]["environment"]["POSTGRES_PASSWORD"]
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        assert environment[name] == SERVICES["objects"]["environment"][name]
    for service in SERVICES.values():
        assert "$" not in str(service.get("command", "")) + str(service["image"])


def test_images_are_pinned_ports_are_local_and_nothing_starts_too_early() -> None:
    dockerfile = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    (base,) = re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE)
    pinned = re.search(r'"mlflow==([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert pinned is not None
    assert base == f"ghcr.io/mlflow/mlflow:v{pinned[1]}"
    assert f'"mlflow[auth]=={pinned[1]}"' in dockerfile
    for name, service in SERVICES.items():
        assert re.fullmatch(r"\S+:\d[\w.-]+", service["image"]), name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert ("healthcheck" in service) == (service["restart"] != "no"), name
        for other, how in service.get("depends_on", {}).items():
            ends = SERVICES[other]["restart"] == "no"
            assert how == {"condition": "service_completed_successfully" if ends else "service_healthy"}
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["mlflow"]
    assert SERVICES["mlflow"]["depends_on"].keys() == {"postgres", "bucket"}


def test_every_file_that_is_named_is_there() -> None:
    dockerfile = (FOLDER / "Dockerfile").read_text(encoding="utf-8")
    copied = re.findall(r"^COPY (.+) \S+$", dockerfile, re.MULTILINE)[0].split()
    mounted = [volume.split(":")[0] for volume in SERVICES["postgres"]["volumes"] if volume.startswith("./")]
    for name in [*copied, *mounted]:
        assert (FOLDER / name).is_file(), name
    for name in copied:
        assert name == "basic_auth.ini" or f"/opt/noam-lab/{name}" in TEXT
    ignored = subprocess.run(["git", "check-ignore", ".docker/.env"], cwd=ROOT, capture_output=True, check=False)
    assert ignored.returncode == 0


def test_members_may_do_what_they_may_on_a_server_of_make_server() -> None:
    parser = configparser.ConfigParser()
    parser.read(FOLDER / "basic_auth.ini", encoding="utf-8")
    section = parser["mlflow"]
    assert section["default_permission"] == DEFAULT_PERMISSION
    database = section["database_uri"].rpartition("/")[2]
    assert f"CREATE DATABASE {database};" in (FOLDER / "databases.sql").read_text(encoding="utf-8")
    assert "admin_password" not in section
