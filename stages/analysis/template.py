"""Pages from templates: one file that needs no network; what is put in is escaped, and what is missing is an error."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from stages.analysis.outcome import number

_STYLE = "page.css.j2"  # how all pages look


def rendered(template: str, **values: Any) -> str:
    """The template of that name in this folder, filled in.

    It has the filters `number` (`stages.analysis.outcome.number`), `probability` and `source` (an SVG file as the
    address of a picture), and includes the common style by the name `style`.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=number, probability=_probability, source=_source)
    return environment.get_template(template).render(style=_STYLE, **values)


def _probability(value: float | None) -> str:
    """Four decimals; what they cannot show is told from zero."""
    if value is None:  # of a model whose numbers are not finite
        return "–"
    return "< 0.0001" if 0 < value < 0.00005 else f"{value:.4f}"


def _source(svg: bytes) -> str:
    return "data:image/svg+xml;base64," + base64.b64encode(svg).decode("ascii")
