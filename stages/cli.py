"""The command `noam`: what people type beside `dvc`."""

from __future__ import annotations

import argparse
import os
import sys

from stages import files, paths
from stages.commands import compare, config, generate, lr_find, options, predict, project, score, server, study
from stages.errors import ArtifactError, LabError, TrackingError


def main() -> None:
    parser = argparse.ArgumentParser(prog="noam", description="Ask the model, look at the runs, bring them to MLflow.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    for command in (predict, generate, score, lr_find, study, compare, config, server):
        command.add(commands)

    serve = commands.add_parser("serve", help="answer over HTTP, on this machine only, with MLflow's server of models")
    model = serve.add_mutually_exclusive_group()
    model.add_argument("--run", metavar="ID", help="the model of this run in MLflow")
    model.add_argument("--model", metavar="PATH", help="a folder with a model (default: data/model)")
    serve.add_argument("--port", type=options.port, default=5001, metavar="N", help="port (default: 5001)")
    serve.set_defaults(do=_serve)

    summary = commands.add_parser("summary", help="the last run in a few lines")
    summary.set_defaults(do=_summary)

    sync = commands.add_parser("sync", help="bring into MLflow whatever it has not got yet")
    other = sync.add_mutually_exclusive_group()
    other.add_argument(
        "--to", metavar="URI", help="copy this project's runs to another store: http(s)://… or sqlite:///…"
    )
    other.add_argument("--from", metavar="URI", dest="source", help="copy the runs of another store here")
    sync.set_defaults(do=_sync)

    ui = commands.add_parser("ui", help="start MLflow's pages on this machine")
    ui.add_argument("--port", type=options.port, default=5000, metavar="N", help="port (default: 5000)")
    ui.set_defaults(do=_ui)

    doctor = commands.add_parser(
        "doctor", help="what interrupted runs left behind, and what a move of the project broke"
    )
    doctor.add_argument("--clean", action="store_true", help="remove what is left behind and not in use")
    doctor.add_argument("--fix", action="store_true", help="mend what a move of the project broke")
    doctor.set_defaults(do=_doctor)

    verify = commands.add_parser("verify", help="run the committed state anew elsewhere and compare every output")
    verify.set_defaults(do=_verify)

    arguments = parser.parse_args()
    try:
        project.check(arguments)
        sys.exit(arguments.do(arguments))
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:  # the reader of a pipe, such as `head`, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(141)


def _summary(_: argparse.Namespace) -> int:
    from stages.analysis.freshness import outdated
    from stages.analysis.summary import summary

    metrics, replicas = files.read_json(paths.METRICS), files.read_json(paths.REPLICAS)
    prompts = files.read_json(paths.EVALUATION / "next_words.json")
    if not isinstance(metrics, dict) or "train" not in metrics:
        raise ArtifactError(paths.METRICS, "not what stage evaluate writes; `dvc repro` makes it anew")
    if not isinstance(replicas, list) or not replicas:
        raise ArtifactError(paths.REPLICAS, "not what stage evaluate writes; `dvc repro` makes it anew")
    changed = outdated()
    if changed:
        more = f" and {len(changed) - 5} more" if len(changed) > 5 else ""
        print(
            f"warning: changed since these numbers were made: {', '.join(changed[:5])}{more}; "
            "`dvc repro` brings all up to date",
            file=sys.stderr,
        )
    print()
    for line in summary(metrics, replicas, prompts):
        print(line)
    print(f"report       {paths.REPORT}")
    print("runs         make ui")
    return 0


def _sync(arguments: argparse.Namespace) -> int:
    if arguments.to is not None or arguments.source is not None:
        from stages.tracking.copying import copy_all

        return copy_all(to=arguments.to, source=arguments.source)
    from stages.tracking.sync import sync_all

    return sync_all()


def _doctor(arguments: argparse.Namespace) -> int:
    from stages.doctor import doctor
    from stages.tracking.moved import store_faults

    try:
        faults, damage = store_faults(), []
    except TrackingError as error:
        faults, damage = [], [str(error)]
    return doctor(clean=arguments.clean, fix=arguments.fix, faults=faults, damage=damage)


def _verify(_: argparse.Namespace) -> int:
    from stages.verify import verify

    return verify()


def _serve(arguments: argparse.Namespace) -> int:
    from stages.tracking.serving import serve_model

    return serve_model(arguments.port, run=arguments.run, folder=arguments.model)


def _ui(arguments: argparse.Namespace) -> int:
    from stages.tracking.server import serve

    return serve(arguments.port)


if __name__ == "__main__":
    main()
