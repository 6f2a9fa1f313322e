"""Plots of comparisons, with matplotlib, which is imported when one is drawn.

They are made to be read at the width of a notebook (7 inches), by people who see colours differently (the palette is
Okabe and Ito's, and lines also differ in dashes and markers), and on light and dark grounds alike: the ground is
transparent, and text and axes are a grey that stands out on both.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Text and axes: contrast 4.5:1 on white and 4.6:1 on black.
INK = "#767676"


class Plot:
    """A figure that shows itself in a notebook.

    Args:
        figure: matplotlib's figure, for changes.
        title: What it shows.
        empty: Whether it only says that there is nothing to show.
    """

    def __init__(self, figure: Figure, title: str, *, empty: bool = False) -> None:
        self.figure = figure
        self.title = title
        self.empty = empty

    def __repr__(self) -> str:
        return f"<Plot {self.title!r}>"

    def _repr_png_(self) -> bytes:
        return self._render("png", dpi=110)

    def save(self, path: str | Path) -> Path:
        """Write it to a file, whose ending says in which format: png, svg, pdf."""
        file = Path(path)
        file.write_bytes(self._render(file.suffix.lstrip(".") or "png", dpi=160))
        return file

    def svg(self) -> str:
        """As an SVG element to put into HTML; text and axes take the page's colour."""
        text = self._render("svg").decode("utf-8")
        text = text[text.index("<svg") :]
        # Several of them in one page must not share names.
        prefix = f"p{id(self):x}-"
        text = re.sub(r'\bid="', f'id="{prefix}', text)
        text = re.sub(r'(href="|url\()#', rf"\1#{prefix}", text)
        text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
        return re.sub(INK, "currentColor", text, flags=re.IGNORECASE)

    def _render(self, form: str, dpi: int = 100) -> bytes:
        buffer = io.BytesIO()
        metadata = {"Date": None} if form == "svg" else None
        self.figure.savefig(buffer, format=form, dpi=dpi, transparent=True, metadata=metadata)
        return buffer.getvalue()


#: The plots of a comparison, each drawn by the module of its name.
KINDS = ("curves", "throughput", "phases", "scaling", "steps")
