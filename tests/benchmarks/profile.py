"""Where the time of the training loop goes: `make profile`, or `python -m tests.benchmarks.profile`.

Trains the ids in data/vocab with the parameters of params.yaml, in memory, and prints what takes the most time itself:
15 operations of torch, and 15 functions of Python, in which those of NumPy are.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import sys
from itertools import islice

from torch._C._profiler import _ExperimentalConfig
from torch.profiler import ProfilerActivity, profile

from stages import paths
from stages.errors import LabError
from stages.params import Params, TrainParams, load_params
from stages.text.vocabulary import Vocabulary
from stages.training.batches import Sentences
from tests.benchmarks import ours


def main() -> int:
    parser = argparse.ArgumentParser(prog="profile", description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=100, help="updates that are looked at, after as many to warm up")
    count = parser.parse_args().updates

    try:
        params = load_params(Params)
        splits = ours.only_training(Sentences.load(paths.VOCAB / "train.npy"))
        vocab_size = len(Vocabulary.load(paths.VOCAB / "vocab.json"))
    except LabError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    settings = params.model_dump(include=set(TrainParams.model_fields)) | ours.ENDLESS | {"max_updates": 0}

    updates = ours.updates(ours.start(settings, splits, vocab_size), 0)
    list(islice(updates, count))
    every_thread = _ExperimentalConfig(profile_all_threads=True)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=every_thread) as operations:
        list(islice(updates, count))
    print(operations.key_averages().table(sort_by="self_cpu_time_total", row_limit=15, max_name_column_width=40))
    with cProfile.Profile() as functions:
        list(islice(updates, count))
    pstats.Stats(functions).sort_stats("tottime").print_stats(15)
    print(f"{count} updates each")
    return 0


if __name__ == "__main__":
    sys.exit(main())
