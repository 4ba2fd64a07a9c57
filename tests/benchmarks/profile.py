"""Where the time of the training loop goes: `make profile`, or `python -m tests.benchmarks.profile`.

Trains the corpus of params.yaml with its parameters, in memory, and prints the 15 operations that take the most time
themselves.
"""

from __future__ import annotations

import argparse
from itertools import islice
from pathlib import Path

from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from stages.params import Params, TrainParams, load_params
from stages.text.reading import normalise, read_lines
from stages.text.vocabulary import Vocabulary
from stages.training.batches import Sentences
from tests.benchmarks import ours


def main() -> None:
    parser = argparse.ArgumentParser(prog="profile", description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=100, help="updates that are looked at, after as many to warm up")
    count = parser.parse_args().updates

    params = load_params(Params)
    lines = [normalise(line, lowercase=params.lowercase) for line in read_lines(Path(params.corpus))]
    vocabulary = Vocabulary.build(
        lines,
        order=params.vocab_order,
        min_count=params.min_count,
        max_vocab=params.max_vocab,
        lowercase=params.lowercase,
    )
    splits = ours.only_training(Sentences(vocabulary.flat_ids(filter(None, lines))))
    settings = params.model_dump(include=set(TrainParams.model_fields)) | ours.ENDLESS | {"max_updates": 0}

    updates = ours.updates(ours.start(settings, splits, len(vocabulary)), 0)
    list(islice(updates, count))
    every_thread = _ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=every_thread) as measured:
        list(islice(updates, count))
    print(measured.key_averages().table(sort_by="self_cpu_time_total", row_limit=15, max_name_column_width=40))
    print(f"{count} updates")


if __name__ == "__main__":
    main()
