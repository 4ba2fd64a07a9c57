"""How figures look, and how they become files with the same bytes everywhere.

Colours are those of Okabe and Ito (2008), told apart by colour-blind readers. No setting of the user, the machine or
the screen has a say: every figure is made and drawn inside `applied`, which starts from matplotlib's own defaults.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from stages.analysis import fonts

BLUE, ORANGE, GREEN, GREY, INK = "#0072B2", "#D55E00", "#009E73", "#8C8C8C", "#262626"
MASKED = "#E4E4E4"  # cells of the future, which attention cannot see
DPI = 200  # of the PNG files: 8 inches give 1600 pixels
SLIDE = (8.0, 4.5)  # inches, 16:9

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
