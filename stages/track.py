"""Everything that the stages made → one run in MLflow, or, where MLflow is away, an outbox for `noam sync`.

Run by `dvc repro`; by hand: `python -m stages.track`.
"""

from __future__ import annotations

from stages import files, paths
from stages.params import Params
from stages.stage import Stage, run
from stages.tracking.tracking import current_execution, results_fingerprint, send_or_keep


def main() -> None:
    stage = Stage("track", Params)

    stage.check_inputs()
    fingerprint = results_fingerprint()
    execution = current_execution(stage.params, fingerprint)

    sent, message = send_or_keep(execution, fingerprint)
    if not sent:
        stage.warn(f"{message}; the results are complete, run `noam sync` to bring them into MLflow later")
    elif message:
        stage.say(message)

    stage.check_inputs()  # once more, since sending takes time
    files.write_json(paths.TRACKED, {"fingerprint": fingerprint})


if __name__ == "__main__":
    run(main)
