"""Training text → vocabulary; all splits → ids.

Run by `dvc repro`; by hand: `python -m stages.vocab`.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import regex
from tqdm import tqdm

from stages import files, paths
from stages.params import VocabParams
from stages.stage import Stage, run
from stages.text.ids import save_ids
from stages.text.reading import Parts
from stages.text.vocabulary import TextSettings, Vocabulary

_SAMPLE = 1000  # units that are looked at for spaces
_UNSPACED = regex.compile(
    r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}\p{Tai_Le}\p{Javanese}]"
)


def main() -> None:
    stage = Stage("vocab", VocabParams)
    params = stage.params
    sources = {name: paths.PREPARED / f"{name}.txt" for name in paths.SPLITS}
    hint = unspaced(Parts(sources["train"])) if params.tokenizer == "word" else ""

    with bar("counting", sources["train"]) as progress:
        vocabulary = Vocabulary.build(
            Parts(sources["train"], progress.update),
            settings_of(params),
            order=params.vocab_order,
            min_count=params.min_count,
            max_vocab=params.max_vocab,
        )

    with files.replacing_folder(paths.VOCAB) as folder:
        counted = {}
        for name, source in sources.items():
            with bar(f"ids of {name}", source) as progress:
                counted[name] = save_ids(folder / f"{name}.npy", vocabulary, Parts(source, progress.update))
        unknown = {name: found.unknown for name, found in counted.items()}
        content = vocabulary.to_dict() | {"unknown_tokens": unknown, "params": params.model_dump()}
        files.write_json(folder / "vocab.json", content)
        stage.check_inputs()  # the folder takes the old one's place only after this
    if hint:
        stage.warn(hint)
    stage.say(f"{len(vocabulary)} entries; unknown tokens: {', '.join(f'{n} {name}' for name, n in unknown.items())}")


def settings_of(params: VocabParams) -> TextSettings:
    return TextSettings(
        lowercase=params.lowercase,
        normalisation=params.normalisation,
        keep_spaces=params.unit in ("document", "stream"),
        tokenizer=params.tokenizer,
    )


def unspaced(parts: Parts) -> str:
    """A hint, where the text is in a script that puts no spaces between words; else nothing."""
    sample = list(islice(parts, _SAMPLE))
    words, characters = sum(len(part.split()) for part in sample), sum(map(len, sample))
    found = sum(len(_UNSPACED.findall(part)) for part in sample)
    if words == 0 or found * 2 < characters:
        return ""
    return (
        f"{words / len(sample):.1f} tokens a sentence: this script has no spaces between words, so that "
        "tokenizer: word takes whole sentences for words; tokenizer: char, byte, bpe or unigram cuts them"
    )


def bar(what: str, source: Path) -> tqdm[Any]:
    """Progress over a file, in bytes."""
    size = source.stat().st_size if source.is_file() else None
    return tqdm(total=size, desc=what, unit="B", unit_scale=True, leave=False, disable=None)


if __name__ == "__main__":
    run(main)
