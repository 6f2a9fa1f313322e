"""Render the HTML templates of ``estimators``, which are fragments for notebooks or whole pages."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimators.job.text import visible

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup


#: The colours of the states of jobs and trials. All are readable on white and on black.
STATE_COLOURS = {"Completed": "#1a8f4c", "Failed": "#d0473d", "Stopped": "#a56d1c", "Stopping": "#a56d1c"}


def render(template: str, **values: Any) -> str:
    """Return a template filled in with values.

    The texts of the values are escaped, and control sequences of terminals are removed.

    Args:
        template: The template's path below ``estimators/`` without the suffix, such as ``results/templates/job``.
        values: The values of the template's variables.
    """
    return _environment().get_template(f"{template}.html.j2").render(**values)


@functools.cache
def _environment() -> Environment:
    import jinja2

    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parents[1]),
        autoescape=True,
        auto_reload=False,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters["visible"] = visible
    made.globals["states"] = STATE_COLOURS
    return made


def _finalize(value: Any) -> str | Markup:
    return value if hasattr(value, "__html__") else visible(str(value))
