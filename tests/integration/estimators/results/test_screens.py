"""What notebooks and reports show, in a real browser: at three widths, in light and dark."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from synthetic import result, status

from estimators import TensorFlow, compare
from estimators.job.errors import TrainingJobError
from estimators.planning import recommend
from estimators.testing import FakeOutcome
from estimators.tuner import CategoricalParameter, ContinuousParameter, HyperparameterTuner

NAME = "tensorflow-training-of-the-whole-catalogue-2026-11-24-02-23-46-327"

#: Cells that are taller than three lines, names in columns of less than twelve characters, and text that is cut off.
FAULTS = """() => {
  const found = [];
  document.querySelectorAll("details").forEach((one) => { one.open = true; });
  for (const cell of document.querySelectorAll("td, th")) {
    const style = getComputedStyle(cell);
    const content = document.createRange();
    content.selectNodeContents(cell);
    const line = parseFloat(style.lineHeight) || 1.5 * parseFloat(style.fontSize);
    const lines = content.getBoundingClientRect().height / line;
    const text = cell.innerText.trim();
    const own = cell.querySelectorAll("br").length + 1;
    // Tables without titles list facts, which may be sentences.
    if (cell.closest("table").tHead && lines > Math.max(3, own) + 0.5)
      found.push(`${lines.toFixed(1)} lines: ${text.slice(0, 60)}`);
    if (content.getBoundingClientRect().width > cell.clientWidth + 1)
      found.push(`over its neighbour: ${text.slice(0, 60)}`);
    if (cell.cellIndex === 0 && text.length >= 12) {
      const ruler = document.createElement("span");
      ruler.style.cssText = "display:inline-block;width:11ch";
      cell.append(ruler);
      const least = ruler.getBoundingClientRect().width;
      ruler.remove();
      if (cell.clientWidth < least) found.push(`${cell.clientWidth} px wide: ${text.slice(0, 60)}`);
    }
  }
  for (const one of document.querySelectorAll("*")) {
    const style = getComputedStyle(one);
    if (one.scrollWidth > one.clientWidth + 1 && style.overflowX === "hidden" && style.textOverflow !== "ellipsis")
      found.push(`cut: ${one.innerText.slice(0, 60)}`);
  }
  if (document.documentElement.scrollWidth > innerWidth + 1) found.push("the page is wider than the window");
  return found;
}"""

#: As JupyterLab has it around an output.
NOTEBOOK = """<!doctype html><meta charset="utf-8"><style>
:root {{ color-scheme: light dark; }}
body {{ font: 13px/1.5 system-ui, sans-serif; margin: 8px; color: CanvasText; background: Canvas; }}
table {{ font-size: 12px; }}
</style>{shown}"""


@pytest.fixture(scope="module")
def displays(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The HTML of each display, with long names, failures and warnings."""
    folder = tmp_path_factory.mktemp("screens")
    (folder / "train.py").touch()
    failure = status("Failed", FailureReason="algo-2, rank 1: ValueError: loss is nan\nmore")
    runs = {
        NAME: result("mpi", name=NAME, step_s=0.025, batch_size=32),
        "ParameterServer(2 servers of 4 cores each)": result("parameter_server", name="servers-1", step_s=0.05),
        f"collective_all_reduce 2 × 1, no epochs, {NAME}-of-the-other-experiment": result(
            "mpi", name="long-1", step_s=0.1
        ),
        "broken": result("mpi", name="broken-1", events=[], state=failure),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLEETFIT_HOME", str(folder / "home"))
        estimator = TensorFlow(
            entry_point="train.py", source_dir=str(folder), instance_type="local_fake", base_job_name=NAME[:40],
            run_options=FakeOutcome(lines=["a line"], metrics={"loss": [3.0, 2.0, 1.0]}).run_options(),
        )  # fmt: skip
        with contextlib.suppress(TrainingJobError):
            estimator.fit(logs=False)
        tuner = HyperparameterTuner(
            estimator, "loss",
            {
                "learning-rate": ContinuousParameter(0.1, 0.2),
                "optimizer": CategoricalParameter(["adam", "sgd"]),
                "weight_decay_of_the_schedule": ContinuousParameter(0.1, 0.2),
            },
            objective_type="Minimize", strategy="Random", max_jobs=3, max_parallel_jobs=3,
        )  # fmt: skip
        tuner.fit()
        comparison = compare(runs)
        return {
            "job": NOTEBOOK.format(shown=estimator.latest_training_job.result()._repr_html_()),
            "comparison": NOTEBOOK.format(shown=comparison._repr_html_()),
            "report": comparison.report(folder / "report.html").read_text(encoding="utf-8"),
            "study": NOTEBOOK.format(shown=tuner._repr_html_()),
            "recommendation": NOTEBOOK.format(
                shown=recommend(
                    "resnet50", hosts=4, instance_type="ml.p3.2xlarge", compute_s=0.2, batch_size=64
                )._repr_html_()
            ),
        }


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [450, 900, 1400])
@pytest.mark.parametrize("display", ["job", "comparison", "report", "study", "recommendation"])
def test_tables_are_read_at_every_width(
    display: str, width: int, scheme: str, displays: dict[str, str], browser: Browser, tmp_path: Path
) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)  # type: ignore[arg-type]
    page.set_content(displays[display])
    page.screenshot(path=tmp_path / f"{display}-{width}-{scheme}.png", full_page=True)
    assert page.evaluate(FAULTS) == []
    page.close()
