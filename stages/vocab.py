"""Training sentences → vocabulary; all splits → ids.

Run by `dvc repro`; by hand: `python -m stages.vocab`.
"""

from __future__ import annotations

import numpy as np

from stages import files, paths
from stages.params import VocabParams
from stages.stage import Stage, run
from stages.text.reading import read_lines
from stages.text.vocabulary import UNK, Vocabulary


def main() -> None:
    stage = Stage("vocab", VocabParams)
    params = stage.params

    splits = {name: read_lines(paths.PREPARED / f"{name}.txt") for name in paths.SPLITS}
    vocabulary = Vocabulary.build(
        splits["train"],
        order=params.vocab_order,
        min_count=params.min_count,
        max_vocab=params.max_vocab,
        lowercase=params.lowercase,
    )
    ids = {name: vocabulary.flat_ids(splits[name]) for name in paths.SPLITS}
    unknown = {name: int((ids[name] == UNK).sum()) for name in paths.SPLITS}

    stage.check_inputs()
    with files.replacing_folder(paths.VOCAB) as folder:
        content = vocabulary.to_dict() | {"unknown_tokens": unknown, "params": params.model_dump()}
        files.write_json(folder / "vocab.json", content)
        for name in paths.SPLITS:
            np.save(folder / f"{name}.npy", ids[name])
    stage.say(f"{len(vocabulary)} entries; unknown tokens: {', '.join(f'{n} {name}' for name, n in unknown.items())}")


if __name__ == "__main__":
    run(main)
