"""Does this machine compute as another one does? Two short trainings in memory, and a digest of their weights.

Each worker of a study does this beside a variant, in a process of its own with the variant's numerics, and so does the
one who asked: by hand, `python -m stages.studies.spot portable`. The first model has the notebook's block, which NumPy
trains, the second the usual pre-norm one, which torch trains; both are wide enough for the math libraries to use the
kernels that they have for this processor.
"""

from __future__ import annotations

import stages.numerics as numerics  # isort: skip (before NumPy)
import hashlib
import json
import sys

import numpy as np

from stages.params import TrainParams
from stages.text.vocabulary import BOS, EOS
from stages.training.batches import Sentences
from stages.training.session import Session

_BLOCKS = ("notebook", "pre")
_VOCABULARY, _SENTENCES, _LONGEST = 60, 24, 9


def spot_check(mode: str) -> dict[str, str]:
    """Train here and now; to be called once in a process.

    Args:
        mode: `portable` or `native`.

    Returns:
        `digest` of all weights, and of what made them `processor`, `kernels` and `torch`.
    """
    numerics.set_numerics(mode)
    text = _text()
    digest = hashlib.sha256()
    for block in _BLOCKS:
        settings = TrainParams.model_validate(
            {
                "block": block,
                "d_model": 128,
                "n_heads": 4,
                "heads": "split",
                "hidden": 256,
                "warmup": 5,
                "batch_size": 4,
                "epochs": 3,
                "eval_every": 3,
                "numerics": mode,
            }
        )
        session = Session(settings, _VOCABULARY, {"train": text, "valid": Sentences(np.array([], dtype=np.uint16))})
        for _ in session.records():
            pass
        for name, weight in sorted(session.weights().items()):
            digest.update(name.encode() + weight.numpy().tobytes())
    about = numerics.describe(mode)
    return {"digest": digest.hexdigest()[:16], **{key: about[key] for key in ("processor", "kernels", "torch")}}


def _text() -> Sentences:
    """Some sentences, from exact arithmetic."""
    ids: list[int] = []
    for i in range(_SENTENCES):
        length = 3 + i % (_LONGEST - 2)
        ids += [BOS, *(4 + (7919 * (i + 1) * (j + 1)) % (_VOCABULARY - 4) for j in range(length)), EOS]
    return Sentences(np.array(ids, dtype=np.uint16))


if __name__ == "__main__":
    print(json.dumps(spot_check(sys.argv[1])))
