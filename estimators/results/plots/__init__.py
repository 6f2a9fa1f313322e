"""Draw plots of compared runs with matplotlib, which is imported when the first plot is drawn.

The plots are readable at the width of a notebook (7 inches). Colour-blind readers can read the plots, because the
palette is Okabe and Ito's, and lines also differ in dashes and markers. On light and dark pages, the plots are
readable, because the background is transparent, and text and axes are grey.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The colour of text and axes: contrast 4.5:1 on white and 4.6:1 on black.
INK = "#767676"


class Plot:
    """A figure that a notebook displays.

    Args:
        figure: The matplotlib figure. Users may change the figure.
        title: The title of the plot.
        empty: Whether the plot shows no data. The plot then shows a text that says why.
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
        """Write the plot to a file. The suffix of the path determines the format: png, svg or pdf.

        Returns:
            The path of the file.
        """
        file = Path(path)
        file.write_bytes(self._render(file.suffix.lstrip(".") or "png", dpi=160))
        return file

    def svg(self) -> str:
        """Return the plot as an SVG element for HTML. Text and axes have the colour of the page's text."""
        text = self._render("svg").decode("utf-8")
        text = text[text.index("<svg") :]
        # Several plots in one page need distinct ids.
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


#: The names of the plots of a comparison. Each plot is drawn by the module that has its name.
KINDS = ("curves", "throughput", "phases", "scaling", "steps")
