"""Plots have one style."""

from __future__ import annotations

from estimators.results.plots import style


def test_axes_have_numbers_as_tables_have_them() -> None:
    made, [axes] = style.figure()
    axes.set_xlim(-1000, 2000)
    axes.set_ylim(0, 0.3)
    made.draw_without_rendering()
    assert "1,000" in (shown := [one.get_text() for one in axes.get_xticklabels()]) and "\u22121,000" in shown
    assert "0.3" in [one.get_text() for one in axes.get_yticklabels()]
