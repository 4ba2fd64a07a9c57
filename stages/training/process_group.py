"""The processes that train one model together: who they are, what they tell each other, and what they agree upon.

They are torch's process group: gloo carries what lies in the processor's memory, NCCL what lies on GPUs. Each has a
rank, from 0 on; rank 0 writes. Nothing that is sent is a pickle.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from stages.errors import TrainingError
from stages.training.runs import Stop

TIMEOUT_SECONDS = 20.0  # that a rank waits for the others, where all have the same to do
PATIENCE_SECONDS = 1800.0  # that the others wait for rank 0 to write
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
# What gloo's errors say, which have no type of their own: the file that they are from, or less.
_GLOO = ("gloo", "pair closure", "connection closed by peer", "connection reset by peer")


class LostRankError(TrainingError):
    """Another process of the group is gone, or did not answer in time."""


class ProcessGroup:
    """This process's place among `size` processes, and the group's collectives. To be opened once in a process.

    Args:
        rank: of this process, from 0.
        size: number of processes.
        store: where they meet; None for torchrun's, which the environment names.
        folder: on this machine, where all of them can share files; None for processes of several machines.
        local_rank: of this process among those of its machine.
        kind: of device: 'cpu' or 'cuda'.
        timeout: seconds after which a collective fails.

    Raises:
        LostRankError: the others did not come.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        *,
        store: Store | None = None,
        folder: Path | None = None,
        local_rank: int = 0,
        kind: str = "cpu",
        timeout: float = TIMEOUT_SECONDS,
    ) -> None:
        self.rank, self.size, self.local_rank, self.kind, self.folder = rank, size, local_rank, kind, folder
        self.stop: AgreedStop = AgreedStop(Stop())
        backend = "gloo" if kind == "cpu" else "cpu:gloo,cuda:nccl"
        where: dict[str, Any] = {} if store is None else {"store": store, "rank": rank, "world_size": size}
        try:
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout), **where)
            self._patient = dist.new_group(backend="gloo", timeout=timedelta(seconds=PATIENCE_SECONDS))
        except (RuntimeError, ValueError) as error:
            raise LostRankError(f"rank {rank} of {size} could not reach the others ({_first_line(error)})") from None

    @property
    def writes(self) -> bool:
        """This is the process that keeps journal, checkpoints and outputs."""
        return self.rank == 0

    def share_loss(self, loss: float) -> Callable[[], float]:
        """Begin to add up the loss of all, and to ask whether any has been told to stop; what is returned waits for it.

        After it `stop` is the same on all ranks.
        """
        asked = self.stop.own.number if self.stop.own.asked else 0
        numbers = torch.tensor([loss, *(float(asked == number) for number in _SIGNALS)], dtype=torch.float64)
        work = dist.all_reduce(numbers, async_op=True)

        def finish() -> float:
            work.wait()
            total, *counts = numbers.tolist()
            for number, count in zip(_SIGNALS, counts, strict=True):
                self.stop.number = self.stop.number or (number if count else 0)
            return float(total)

        return finish

    def sum(self, value: float) -> float:
        """The sum of a number over all ranks."""
        number = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(number)
        return float(number)

    def add(self, array: npt.NDArray[Any]) -> None:
        """Put the sum over all ranks into an array; exact where all but one of them have zeros."""
        dist.all_reduce(torch.from_numpy(array.view(np.uint8) if array.dtype == np.bool_ else array))

    def add_up(self, vector: Tensor) -> None:
        """Put the sum over all ranks into a vector."""
        dist.all_reduce(vector)

    def gather(self, vector: Tensor) -> list[Tensor]:
        """The vectors of all ranks, which have the same length, on rank 0; an empty list on the others."""
        found = [torch.empty_like(vector) for _ in range(self.size)] if self.writes else None
        dist.gather(vector, found)
        return found or []

    def check_same(self, digest: str) -> None:
        """Make sure that all ranks have the same parameters, code and data.

        Raises:
            TrainingError: some have not.
        """
        other = self._from_writer(digest.encode()) != digest.encode()
        differing = np.zeros(self.size)
        differing[self.rank] = other
        self.add(differing)
        if differing.any():
            ranks = ", ".join(str(rank) for rank in np.flatnonzero(differing))
            raise TrainingError(
                f"rank {ranks} of {self.size} has other parameters, code, data or version of torch than rank 0; "
                "give all the same params.yaml, stages/ and data/vocab"
            )

    def share_state(
        self, state: tuple[Mapping[str, Tensor], Mapping[str, Any]] | None
    ) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What rank 0 goes on from, on all ranks: tensors, and a place of JSON; None where it starts from nothing."""
        if self.writes:
            tensors, place = state if state is not None else ({}, None)
            packed = safetensors.torch.save(dict(tensors), metadata=None)
            self._from_writer(json.dumps(place).encode())
            self._from_writer(packed)
            return (dict(tensors), dict(place)) if place is not None else None
        place = json.loads(self._from_writer(b""))
        tensors = safetensors.torch.load(self._from_writer(b""))
        return (tensors, place) if place is not None else None

    def wait_for_writer(self) -> None:
        """Until rank 0 has come here as well: it may have had a slow disk to write to."""
        dist.all_reduce(torch.zeros(1), group=self._patient)

    def close(self) -> None:
        """Leave the group, when all have come here."""
        dist.all_reduce(torch.zeros(1), group=self._patient)
        dist.destroy_process_group()

    def _from_writer(self, content: bytes) -> bytes:
        size = torch.tensor([len(content)])
        dist.broadcast(size, 0, group=self._patient)
        sent = torch.empty(int(size), dtype=torch.uint8)
        if self.writes:
            sent = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if len(sent):
            dist.broadcast(sent, 0, group=self._patient)
        return content if self.writes else sent.numpy().tobytes()


class AgreedStop(Stop):
    """Asked for when all ranks know of it, so that all stop after the same update."""

    def __init__(self, own: Stop) -> None:
        super().__init__()
        self.own = own

    @property
    def asked(self) -> bool:
        return self.number != 0


def lost(error: BaseException) -> LostRankError | None:
    """What an error of a collective means; None for any other error."""
    if isinstance(error, LostRankError):
        return error
    text = str(error).lower()
    if isinstance(error, dist.DistError) or (isinstance(error, RuntimeError) and any(word in text for word in _GLOO)):
        what = f"another process of the group is gone or did not answer within {TIMEOUT_SECONDS:g} s"
        return LostRankError(f"{what} ({_first_line(error)})")
    return None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0][:200]
