"""What a system that runs variants elsewhere is asked for, and what it tells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from stages.studies.messages import Result, Work


@dataclass(frozen=True)
class Event:
    """Something that became known of a variant.

    Attributes:
        key: of the `Work`.
        kind: `started` on a machine; `ended` with a result; `lost`, that is without one, and nobody works on it.
        host: where it started or ended; '' where that is not known.
        result: of one that ended.
        why: it was lost, in words.
        began: of one that was lost: it had started, so that this counts as a try.
    """

    key: str
    kind: Literal["started", "ended", "lost"]
    host: str = ""
    result: Result | None = None
    why: str = ""
    began: bool = True


class Engine(Protocol):
    """Runs `stages.studies.remote.run_variant` on other machines."""

    name: str

    def submit(self, work: Work) -> None:
        """Put a variant into the queue; one that was lost may be submitted again."""

    def events(self) -> list[Event]:
        """What has become known; waits a second or two where nothing has.

        Raises:
            StudyError: the system is gone.
        """

    def close(self) -> None:
        """Let go of it: what waits is taken back, what runs is brought to its end by whoever runs it."""
