"""Which font draws which character, the same on every machine.

Each character comes from the first of these that has it:

1. DejaVu Sans, which matplotlib carries: Latin, Greek, Cyrillic, Arabic, Hebrew, Armenian, Georgian, Lao, symbols
2. Noto Sans for single scripts and Noto Emoji, from the package `manimgx-fonts` (Devanagari, Thai, Bengali, Tamil, …)
3. Noto Sans CJK, from the package `noto-cjk-sans-otc` (Chinese, Japanese, Korean)

A character that none of them has is written as its code, ‹U+1234›. Fonts installed on the machine are never used: with
them, the same inputs would give other bytes elsewhere. Complex scripts and right-to-left words are shaped by
matplotlib itself (libraqm, since 3.11).
"""

from __future__ import annotations

import importlib.util
import unicodedata
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
from matplotlib.font_manager import FontEntry, fontManager
from matplotlib.ft2font import FT2Font

_CJK_FACES = {"JP": 0, "KR": 1, "SC": 2}  # the order of the faces in the collection
_NEVER_DRAWN = {"Cc", "Cs", "Co", "Cn"}  # controls, halves of pairs, private and unassigned characters
LONGEST_WORD = 24  # columns; longer words are cut with an ellipsis
_SPACES = {" ": "␣", "\n": "⏎", "\t": "⇥"}


class Font(NamedTuple):
    """A font file, or one face of a collection."""

    path: Path
    face: int
    family: str


def families(texts: Iterable[str]) -> list[str]:
    """The font families that draw `texts`, the basic one first; matplotlib picks among them character by character."""
    characters = sorted(set().union(*map(set, texts)))
    needed = {font: None for char in characters if (font := _font_with(char, _cjk_style(characters)))}
    chosen = [_basic(), *(font for font in needed if font != _basic())]
    for font in chosen:
        _register(font)
    return [font.family for font in chosen]


def unreadable(texts: Iterable[str]) -> list[str]:
    """The characters in `texts` that no font has, in the order of their codes; those that `visible` shows have one."""
    return [char for char in sorted(set().union(*(visible(text) for text in texts))) if not _readable(char)]


def visible(word: str) -> str:
    """`word` as a token of its own is shown, so that none is blank; a second time changes nothing.

    A space is ␣, a new line ⏎, a tab ⇥. Other white space is its code, ‹U+00A0›, and so is a word
    that would draw nothing at all, such as a lone zero-width joiner. A mark without its letter stands on ◌.
    """
    shown = "".join(_SPACES.get(char, _code(char) if char.isspace() else char) for char in word)
    if not any(unicodedata.category(char) not in ("Cf", "Mn", "Me", "Mc") for char in shown):
        shown = "".join(_code(char) if unicodedata.category(char) == "Cf" else char for char in shown)
    return f"◌{shown}" if unicodedata.category(shown[:1] or "x").startswith("M") else shown


def label(word: str, longest: int = LONGEST_WORD) -> str:
    """`word` as it is drawn: codes for unreadable characters, at most `longest` columns, no mark without its letter."""
    shown = "".join(char if _readable(char) else _code(char) for char in word)
    if columns(shown) <= longest:
        return shown
    end = len(shown)
    while end > 1 and (columns(shown[:end]) > longest - 1 or unicodedata.category(shown[end]).startswith("M")):
        end -= 1
    return shown[:end] + "…"


def columns(text: str) -> int:
    """Width of `text` in columns: two for East Asian wide characters, none for marks."""
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text)
    marks = sum(unicodedata.category(char) in ("Mn", "Me", "Cf") for char in text)
    return len(text) + wide - marks


def _code(char: str) -> str:
    return f"‹U+{ord(char):04X}›"


def _readable(char: str) -> bool:
    return unicodedata.category(char) not in _NEVER_DRAWN and _font_with(char, "SC") is not None


@cache
def _font_with(char: str, cjk_style: str) -> Font | None:
    return next((font for font in (_basic(), *_packaged(cjk_style)) if _open(font).get_char_index(ord(char))), None)


@cache
def _basic() -> Font:
    return Font(Path(mpl.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf"), 0, "Lab DejaVu Sans")


@cache
def _packaged(cjk_style: str) -> list[Font]:
    """The fonts of the two packages; without a package, fewer."""
    scripts = [path for path in _package_files("manimgx_fonts", "Noto*.ttf") if "Italic" not in path.name]
    face = _CJK_FACES[cjk_style]
    cjk = [Font(path, face, f"Lab {path.stem} {cjk_style}") for path in _package_files("noto_cjk_sans_otc", "*.ttc")]
    return [*(Font(path, 0, f"Lab {path.stem}") for path in scripts), *cjk]


def _package_files(package: str, pattern: str) -> list[Path]:
    """Data files of an installed package, sorted by name; the package's code is not run."""
    found = importlib.util.find_spec(package)
    folders = found.submodule_search_locations if found else None
    return sorted(Path(folders[0]).glob(pattern)) if folders else []


@cache
def _open(font: Font) -> FT2Font:
    return FT2Font(font.path, face_index=font.face)


def _cjk_style(characters: Iterable[str]) -> str:
    """The national style of the Han characters: Japanese beside kana, Korean beside Hangul, otherwise Chinese."""
    names = {unicodedata.name(char, "").split(" ", 1)[0] for char in characters}
    return "JP" if names & {"HIRAGANA", "KATAKANA"} else "KR" if "HANGUL" in names else "SC"


@cache
def _register(font: Font) -> None:
    """Tell matplotlib of the font under a name of our own, which no font of the machine can take the place of."""
    bold = font.path.with_name("DejaVuSans-Bold.ttf") if font == _basic() else font.path
    for path, weight in ((font.path, 400), (bold, 700)):
        fontManager.ttflist.append(
            FontEntry(fname=str(path), index=font.face, name=font.family, weight=weight, size="scalable")
        )
