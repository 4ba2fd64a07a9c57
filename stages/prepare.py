"""Corpus → normalised sentences in three splits, with an account of what was read, kept and dropped.

Neither the corpus nor its sentences are held in memory: they are written once while they are read, and once more into
their splits. Run by `dvc repro`; by hand: `python -m stages.prepare`.
"""

from __future__ import annotations

from copy import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tqdm import tqdm

from stages import files, paths
from stages.errors import CorpusError
from stages.params import PrepareParams
from stages.stage import Stage, run
from stages.text.formats import Source, find_sources, read_records, whole_lines
from stages.text.opening import check_encoding, read_text
from stages.text.provenance import advice
from stages.text.routing import route_stream, route_units
from stages.text.splitting import assign, to_ranks
from stages.text.units import UNITS, Units

GRAMMAR = "grammar"  # the corpus that is drawn, not read
_LISTED = 100  # files of a folder that the account names


def main() -> None:
    stage = Stage("prepare", PrepareParams)
    params = stage.params
    sources, skipped = find_sources(Path(params.corpus)) if params.corpus != GRAMMAR else ([], [])
    check_encoding(params.encoding)
    if sources and (what_to_do := advice(Path(params.corpus), [source.path for source in sources])):
        stage.warn(what_to_do)

    with files.replacing_folder(paths.PREPARED) as folder:
        everything = folder / "everything.tmp"
        with open(everything, "wb") as out:
            units = UNITS[params.unit](
                out, seed=params.split_seed, lowercase=params.lowercase, form=params.normalisation
            )
            by_file = _read(sources, params, units) if sources else _draw(params, units)
        if not units.counts.sentences_used:
            raise CorpusError(params.corpus, f"no sentence in {units.counts.lines_read} line(s)")
        split = _split_stream if params.unit == "stream" else _split_units
        account = _account(params, units, by_file, skipped) | split(units, everything, folder, params)
        account["params"] = params.model_dump(exclude={"corpus"})
        stage.check_inputs()
    files.write_json(paths.CORPUS_REPORT, account)
    stage.say(_summary(account))


def _read(sources: list[Source], params: PrepareParams, units: Units) -> list[dict[str, Any]]:
    """Take in all files; what was read of each."""
    by_file = []
    size = sum(source.path.stat().st_size for source in sources)
    with tqdm(total=size, desc="prepare", unit="B", unit_scale=True, leave=False, disable=None) as bar:
        for source in sources:
            before = copy(units.counts)
            texts = read_text(source.path, params.encoding, bar.update)
            if source.kind == "text":
                for block in whole_lines(texts, cut_at_spaces=units.cut_at_spaces):
                    units.text(block)
            else:
                for text in read_records(
                    source,
                    map(units.without_marks, texts),
                    encoding=params.encoding,
                    text_column=params.text_column,
                    text_field=params.text_field,
                ):
                    units.record(text)
            units.end_file()
            by_file.append({"file": source.name, **units.since(before)})
        units.close()
    return by_file


def _draw(params: PrepareParams, units: Units) -> list[dict[str, Any]]:
    """Take in sentences of the grammar."""
    from stages.text.grammar import Grammar  # loads scipy

    for sentence in Grammar(params.grammar_depth).sentences(params.grammar_sentences, params.grammar_seed):
        units.record(sentence)
    units.end_file()
    units.close()
    return []


def _split_units(units: Units, everything: Path, folder: Path, params: PrepareParams) -> dict[str, Any]:
    splits, distinct = assign(to_ranks(units.ranks), params.valid_fraction, params.test_fraction)
    return {
        "distinct_sentences": distinct,
        "repeated_sentences_kept": units.counts.sentences_used - distinct,
        "sentences_by_split": route_units(everything, folder, splits),
    }


def _split_stream(_: Units, everything: Path, folder: Path, params: PrepareParams) -> dict[str, Any]:
    shares = route_stream(everything, folder, params.valid_fraction, params.test_fraction)
    return {"distinct_sentences": 1, "repeated_sentences_kept": 0, **shares}


def _account(params: PrepareParams, units: Units, by_file: list[dict[str, Any]], skipped: list[str]) -> dict[str, Any]:
    """What was read, used, dropped and changed; by file where the corpus is a folder."""
    account: dict[str, Any] = {"file": Path(params.corpus).name, **asdict(units.counts)}
    if Path(params.corpus).is_dir() and by_file:
        account |= {
            "files_read": len(by_file),
            "files_skipped": len(skipped),
            "files": by_file[:_LISTED],
            "files_not_listed": max(0, len(by_file) - _LISTED),
            "skipped": skipped[:_LISTED],
            "skipped_not_listed": max(0, len(skipped) - _LISTED),
        }
    return account


def _summary(account: dict[str, Any]) -> str:
    """The account in a line."""
    one_text = "lines_by_split" in account
    shares = account["lines_by_split" if one_text else "sentences_by_split"]
    sentences = f", {account['distinct_sentences']} distinct sentences of {account['sentences_used']}"
    listed = ", ".join(f"{n} {name}" for name, n in shares.items())
    return f"{account['lines_read']} lines read{' as one text' if one_text else sentences} ({listed})"


if __name__ == "__main__":
    run(main)
