"""`noam config`: the settings of this project's main workspace, which no result depends on."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from stages import paths

if TYPE_CHECKING:
    from stages.commands.options import Commands

_KEYS = ("store",)


def add(commands: Commands) -> None:
    parser = commands.add_parser("config", help="show or set where the runs go")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("key", nargs="?", choices=_KEYS, metavar="KEY", help="store: where MLflow keeps the runs")
    what.add_argument("--unset", choices=_KEYS, metavar="KEY", help="remove the setting")
    parser.add_argument("value", nargs="?", metavar="URI", help="its new value; without one it is shown")
    parser.set_defaults(do=run)


def run(arguments: argparse.Namespace) -> int:
    from stages.tracking import address

    if arguments.unset:
        if not address.unset_for_project():
            print(f"{arguments.unset} is not set here: there is no {address.config_file()}")
    elif arguments.value is not None:
        address.set_for_project(arguments.value)
    return _show()


def _show() -> int:
    """Print what counts and who says so; what is set but does not count goes to stderr."""
    from stages.tracking import address
    from stages.tracking.store import tracking_uri

    counts = address.configured()
    source = counts.source if counts else f"the default: a database in {paths.main_root()}"
    print(f"store  {tracking_uri()}  ({source})")
    written = address.of_project()
    if counts and written and written.source != counts.source:
        print(f"note: {counts.source} wins over {written.uri} in {written.source}", file=sys.stderr)
    return 0
