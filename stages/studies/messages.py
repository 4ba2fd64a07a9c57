"""What is sent to a machine that runs a variant, and what comes back: plain values, no path of the one who asks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

DONE, BASE = "refs/noam/done/", "refs/noam/base/"  # in the git remote: results by their keys; commits that it lacked


@dataclass(frozen=True)
class Work:
    """A variant with all its seeds.

    Attributes:
        key: digest of all that the result depends on (`stages.studies.done`).
        name: of the experiment.
        url: of the git remote.
        base: commit that the experiment goes on top of.
        base_ref: ref of ours in the remote that has this commit; '' where a branch or tag of it does.
        diff: of the working tree from that commit, as `git diff --binary` writes it.
        overrides: values in params.yaml that differ from what the commit and the diff give.
        inputs: MD5 of code and text by path, as they have to be before anything is run.
        pulled: `.dvc` files whose data DVC's remote has.
        dvc_remote: its name in DVC's configuration.
        dvc_settings: of that remote, without what is secret.
        numerics: of the variant, for the spot check.
        tracking_uri: of MLflow's store; '' for that of the machine, or none.
        run_state: shared folder for checkpoints; '' for that of the machine, or none.
    """

    key: str
    name: str
    url: str
    base: str
    base_ref: str
    diff: bytes
    overrides: Mapping[str, Any]
    inputs: Mapping[str, str]
    pulled: tuple[str, ...]
    dvc_remote: str
    dvc_settings: Mapping[str, str]
    numerics: str
    tracking_uri: str = ""
    run_state: str = ""


@dataclass(frozen=True)
class Result:
    """What came of it.

    Attributes:
        key: of the work.
        commit: of the experiment in the git remote; '' where the variant failed.
        problem: why it failed; ''.
        host: name of the machine.
        spot: what the spot check gave (`stages.studies.spot`); {} where it could not be made.
        versions: of the packages that count, by name.
        notes: what the user should know nonetheless.
        again: somebody else had brought the same result before.
    """

    key: str
    commit: str = ""
    problem: str = ""
    host: str = ""
    spot: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    again: bool = False
