"""Corpus → normalised sentences in three splits, with an account of what was read, kept and dropped.

Run by `dvc repro`; by hand: `python -m stages.prepare`.
"""

from __future__ import annotations

from pathlib import Path

from stages import files, paths
from stages.errors import CorpusError
from stages.params import PrepareParams
from stages.stage import Stage, run
from stages.text.reading import BYTE_ORDER_MARK, normalise, read_lines
from stages.text.splitting import split_sentences


def main() -> None:
    stage = Stage("prepare", PrepareParams)
    params = stage.params

    lines = read_lines(Path(params.corpus))
    normalised = [normalise(line, lowercase=params.lowercase) for line in lines]
    sentences = [sentence for sentence in normalised if sentence]
    if not sentences:
        raise CorpusError(params.corpus, f"no sentence in {len(lines)} line(s)")
    splits = split_sentences(sentences, params.valid_fraction, params.test_fraction, params.split_seed)

    distinct = len(set(sentences))
    account = {
        "file": Path(params.corpus).name,
        "lines_read": len(lines),
        "blank_lines_dropped": len(lines) - len(sentences),
        "sentences_used": len(sentences),
        "distinct_sentences": distinct,
        "repeated_sentences_kept": len(sentences) - distinct,
        "byte_order_marks_removed": sum(line.count(BYTE_ORDER_MARK) for line in lines),
        "lines_changed_by_normalisation": sum(a != b for a, b in zip(lines, normalised, strict=True) if b),
        "words": sum(len(sentence.split()) for sentence in sentences),
        "longest_sentence_in_words": max(len(sentence.split()) for sentence in sentences),
        "sentences_by_split": {name: len(splits[name]) for name in paths.SPLITS},
        "params": params.model_dump(exclude={"corpus"}),
    }

    stage.check_inputs()
    with files.replacing_folder(paths.PREPARED) as folder:
        for name in paths.SPLITS:
            files.write_text(folder / f"{name}.txt", "".join(f"{sentence}\n" for sentence in splits[name]))
    files.write_json(paths.CORPUS_REPORT, account)
    shares = ", ".join(f"{len(splits[name])} {name}" for name in paths.SPLITS)
    stage.say(f"{len(lines)} lines read, {distinct} distinct sentences of {len(sentences)} ({shares})")


if __name__ == "__main__":
    run(main)
