"""The command `noam`: what people type beside `dvc`."""

from __future__ import annotations

import argparse
import sys

from stages import files, paths
from stages.errors import ArtifactError, LabError


def main() -> None:
    parser = argparse.ArgumentParser(prog="noam", description="Ask the model, look at the runs, bring them to MLflow.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    predict = commands.add_parser("predict", help="the next words after a beginning of a sentence")
    predict.add_argument("text", help="the beginning; '' continues [bos] alone")
    predict.add_argument("--top", type=_whole, default=5, metavar="N", help="how many words (default: 5)")
    predict.add_argument("--json", action="store_true", help="print JSON")
    predict.set_defaults(do=_predict)

    summary = commands.add_parser("summary", help="the last run in a few lines")
    summary.set_defaults(do=_summary)

    sync = commands.add_parser("sync", help="bring into MLflow whatever it has not got yet")
    sync.set_defaults(do=_sync)

    ui = commands.add_parser("ui", help="start MLflow's pages on this machine")
    ui.add_argument("--port", type=_port, default=5000, metavar="N", help="port (default: 5000)")
    ui.set_defaults(do=_ui)

    doctor = commands.add_parser("doctor", help="what interrupted runs left behind")
    doctor.add_argument("--clean", action="store_true", help="remove what is not in use")
    doctor.set_defaults(do=_doctor)

    verify = commands.add_parser("verify", help="run the committed state anew elsewhere and compare every output")
    verify.set_defaults(do=_verify)

    arguments = parser.parse_args()
    try:
        sys.exit(arguments.do(arguments))
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def _whole(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number ≥ 1")
    return int(text)


def _port(text: str) -> int:
    if (port := _whole(text)) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number from 1 to 65535")
    return port


def _predict(arguments: argparse.Namespace) -> int:
    from stages.model.predict import Predictor  # imports torch

    prediction = Predictor.load(paths.MODEL, paths.VOCAB / "vocab.json").next_words(arguments.text, arguments.top)
    if arguments.json:
        print(files.dump_json(prediction.to_dict()), end="")
        return 0
    if prediction.unknown:
        print(f"unknown to the model, read as [unk]: {', '.join(prediction.unknown)}", file=sys.stderr)
    print(" ".join(prediction.tokens))
    width = max(len(word) for word, _ in prediction.next)
    for word, probability in prediction.next:
        print(f"  {word:<{width}}  {probability:.3f}")
    return 0


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


def _sync(_: argparse.Namespace) -> int:
    from stages.tracking.sync import sync_all

    return sync_all()


def _doctor(arguments: argparse.Namespace) -> int:
    from stages.doctor import doctor

    return doctor(clean=arguments.clean)


def _verify(_: argparse.Namespace) -> int:
    from stages.verify import verify

    return verify()


def _ui(arguments: argparse.Namespace) -> int:
    from stages.tracking.server import serve

    return serve(arguments.port)


if __name__ == "__main__":
    main()
