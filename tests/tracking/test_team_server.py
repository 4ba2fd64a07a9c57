"""What a team's server refuses before it starts anything; tests/services runs the real one."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import stat
from pathlib import Path

import pytest

from stages.errors import TrackingError
from stages.tracking import cluster, team_server
from stages.tracking.cluster import Cluster, write_private
from stages.tracking.team_server import check_password, serve_team


@pytest.mark.parametrize(
    ("password", "words"),
    [
        ("", "0 characters; a password has at least 12"),
        ("elevenchars", "11 characters; a password has at least 12"),
        ("password1234", "everybody tries first"),
        ("PassWord-1234", "everybody tries first"),
        ("adminadminadmin", "everybody tries first"),
        ("change-me-change-me", "everybody tries first"),
        ("aaaaaaaaaaaaaaaa", "everybody tries first"),
        ("123456789012", "everybody tries first"),
    ],
)
def test_weak_passwords_are_refused_and_not_shown(password: str, words: str) -> None:
    with pytest.raises(TrackingError, match=words) as raised:
        check_password(password, "NOAM_SERVER_PASSWORD")
    assert str(raised.value).startswith("NOAM_SERVER_PASSWORD: ")
    assert not password or password not in str(raised.value)


@pytest.mark.parametrize("password", ["twelve chars", "admin of the lab", "correcthorsebattery", "Nk3-x9_qLm2vTz"])
def test_others_are_taken(password: str) -> None:
    check_password(password, "NOAM_SERVER_PASSWORD")


def test_a_weak_password_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOAM_SERVER_PASSWORD", "password1234")
    with pytest.raises(TrackingError, match="NOAM_SERVER_PASSWORD"):
        serve_team(tmp_path / "server")
    assert not (tmp_path / "server").exists()


def test_without_postgresql_the_message_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cluster, "_PLACES", "no/such/folder/*/initdb")
    with pytest.raises(TrackingError, match=r"needs PostgreSQL; install it .*apt-get install postgresql"):
        Cluster(tmp_path)


def test_a_cluster_of_another_version_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "postgres").mkdir()
    (tmp_path / "postgres/PG_VERSION").write_text("9\n", encoding="ascii")
    if not any(Path("/").glob(cluster._PLACES)) and shutil.which("initdb") is None:
        pytest.skip("no PostgreSQL here")
    with pytest.raises(TrackingError, match=r"was made by PostgreSQL 9, and here is \d+"):
        Cluster(tmp_path)


def test_root_needs_a_user_for_postgresql(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def unknown(name: str) -> pwd.struct_passwd:
        raise KeyError(name)

    monkeypatch.setattr(pwd, "getpwnam", unknown)
    with pytest.raises(TrackingError, match="no user postgres here"):
        cluster._account()


def test_a_port_that_cannot_be_had_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NOAM_SERVER_PASSWORD", raising=False)
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        for host in ("127.0.0.1", "0.0.0.0"):
            with pytest.raises(TrackingError, match=rf"^port {port} is busy; choose another with --port$"):
                serve_team(tmp_path / "server", host, port)
    with pytest.raises(TrackingError, match=r"--host 203\.0\.113\.7: "):
        serve_team(tmp_path / "server", "203.0.113.7", port)
    with pytest.raises(TrackingError, match=r"--host no\.such\.name\.invalid: no address of this machine"):
        serve_team(tmp_path / "server", "no.such.name.invalid", port)
    assert not (tmp_path / "server/postgres").exists()


def test_secrets_are_for_their_owner_and_stay_the_same(tmp_path: Path) -> None:
    first = team_server._kept(tmp_path / "key", 32)
    assert len(first) >= 43
    assert team_server._kept(tmp_path / "key", 32) == first
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    write_private(tmp_path / "key", "another\n")
    assert team_server._kept(tmp_path / "key", 32) == "another"
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["key"]


def test_the_names_it_answers_to() -> None:
    assert team_server._own_names("127.0.0.1") == ["localhost", "127.0.0.1", "[::1]"]
    assert team_server._own_names("198.51.100.4")[-1] == "198.51.100.4"
    everywhere = team_server._own_names("0.0.0.0")
    assert everywhere[-1] == socket.gethostname() or socket.gethostname() in everywhere
    assert "127.0.0.1" in everywhere
    assert not [name for name in everywhere if "*" in name]
