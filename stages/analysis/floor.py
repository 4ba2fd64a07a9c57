"""The best that any model can do on a text it knows by heart: the entropy of the text's prefix tree."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable

from stages.text.vocabulary import BOS, EOS


def prefix_tree_floor(ids: Iterable[int]) -> float:
    """Nats a token, when each next word is predicted by its frequency after the whole sentence before it.

    Args:
        ids: sentences, each from [bos] to [eos]; both ends included.

    No model that sees only the words before can have a lower cross-entropy on this text. Memory grows with the text.
    """
    followers: defaultdict[int, Counter[int]] = defaultdict(Counter)  # by node of the tree
    child: dict[tuple[int, int], int] = {}
    node = 0
    for word in ids:
        if word == BOS:
            node = 0
            continue
        followers[node][word] += 1
        node = 0 if word == EOS else child.setdefault((node, word), len(child) + 1)
    total = sum(counts.total() for counts in followers.values())
    nats = sum(-n * math.log(n / counts.total()) for counts in followers.values() for n in counts.values())
    return nats / total
