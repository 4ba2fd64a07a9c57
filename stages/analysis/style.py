"""How figures look, and how they become files with the same bytes everywhere.

Colours are those of Okabe and Ito (2008), told apart by colour-blind readers. No setting of the user, the machine or
the screen has a say: every figure is made and drawn inside `applied`, which starts from matplotlib's own defaults.
"""

from __future__ import annotations

import io
import multiprocessing
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from stages.analysis import fonts
from stages.cores import available_cores

BLUE, ORANGE, GREEN, GREY, INK = "#0072B2", "#D55E00", "#009E73", "#8C8C8C", "#262626"
MASKED = "#E4E4E4"  # cells of the future, which attention cannot see
DPI = 200  # of the PNG files: 8 inches give 1600 pixels
SLIDE = (8.0, 4.5)  # inches, 16:9
_AT_ONCE = 64
_figures: list[Figure] = []

_STYLE: dict[str, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": GREY,
    "axes.formatter.useoffset": False,
    "axes.labelcolor": INK,
    "axes.labelpad": 6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.titlesize": 13,
    "axes.titleweight": "bold",
    "figure.constrained_layout.h_pad": 0.1,
    "figure.constrained_layout.w_pad": 0.1,
    "font.size": 10.5,
    "grid.color": "#E6E6E6",
    "grid.linewidth": 0.8,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "svg.fonttype": "path",
    "svg.hashsalt": "noam-lab",
    "text.color": INK,
    "text.parse_math": False,  # a word such as $x_1$ is a word
    "xtick.color": INK,
    "xtick.major.size": 3,
    "ytick.color": INK,
    "ytick.major.size": 3,
}


@contextmanager
def applied(texts: Iterable[str] = ()) -> Iterator[None]:
    """Matplotlib's defaults and this style, with fonts for `texts`, until the block ends."""
    defaults = {key: value for key, value in mpl.rcParamsDefault.items() if not key.startswith("backend")}
    settings: Any = {**defaults, **_STYLE, "font.family": fonts.families(texts)}
    with mpl.rc_context(settings):
        yield


def rendered(figure: Figure) -> dict[str, bytes]:
    """The figure as `png` and `svg` (letters as outlines), without dates and without the program's name.

    Each canvas draws once; `Figure.savefig` would draw twice and compute the layout twice.
    """
    with applied(), io.BytesIO() as png, io.BytesIO() as svg:
        figure.set_dpi(DPI)
        FigureCanvasAgg(figure).print_png(png, metadata={"Software": None})  # type: ignore[no-untyped-call]
        figure.set_layout_engine("none")  # the layout of the PNG is kept
        FigureCanvasSVG(figure).print_svg(svg, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))  # type: ignore[no-untyped-call]
        return {"png": png.getvalue(), "svg": svg.getvalue()}


def all_rendered(figures: Iterable[tuple[str, Figure]]) -> dict[str, dict[str, bytes]]:
    """`rendered` of each figure by its name, on all cores where processes can be forked.

    A few at a time, so that no more than these are in memory.
    """
    found: dict[str, dict[str, bytes]] = {}
    waiting = iter(figures)
    cores = _cores()
    while some := list(islice(waiting, _AT_ONCE)):
        found |= dict(zip([name for name, _ in some], _drawn([figure for _, figure in some], cores), strict=True))
    return found


def _drawn(figures: list[Figure], cores: int) -> list[dict[str, bytes]]:
    if cores == 1 or len(figures) == 1:
        return [rendered(figure) for figure in figures]
    _figures[:] = figures  # what a forked process finds in its memory need not be sent to it
    pool = multiprocessing.get_context("fork").Pool(min(cores, len(figures)), _leave_signals_alone)
    try:
        return pool.map(_nth_rendered, range(len(figures)), chunksize=1)
    finally:
        pool.close()  # `terminate` would send a signal
        pool.join()


def _leave_signals_alone() -> None:
    """A worker has its parent's handlers, yet it is the parent's to say why it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _nth_rendered(i: int) -> dict[str, bytes]:
    return rendered(_figures[i])


def _cores() -> int:
    """How many processes may draw; one, where a fork could copy a lock that another thread holds."""
    if sys.platform != "linux" or threading.active_count() > 1:
        return 1
    return available_cores()
