"""`noam server`: a store for a team, with passwords, on a machine that has PostgreSQL."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from stages import paths
from stages.commands import options

if TYPE_CHECKING:
    from stages.commands.options import Commands


def add(commands: Commands) -> None:
    parser = commands.add_parser("server", help="start a team's store: MLflow with passwords, on PostgreSQL")
    parser.add_argument("--folder", type=Path, metavar="PATH", help="where all of it lies (default: .server)")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="where to listen (default: 127.0.0.1)")
    parser.add_argument("--port", type=options.port, default=5000, metavar="N", help="port (default: 5000)")
    parser.add_argument(
        "--allowed-hosts",
        default="",
        metavar="NAME,…",
        help="further names by which the team reaches it, such as that of a proxy with TLS",
    )
    parser.set_defaults(do=run)


def run(arguments: argparse.Namespace) -> int:
    from stages.tracking.team_server import serve_team

    folder = arguments.folder or paths.main_root() / ".server"
    names = [name.strip() for name in arguments.allowed_hosts.split(",")]
    return serve_team(folder, arguments.host, arguments.port, names)
