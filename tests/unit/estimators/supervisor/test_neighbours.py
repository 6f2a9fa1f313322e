"""Where a module of the user's own lies that was not sent with a job."""

from __future__ import annotations

from pathlib import Path

import pytest

from container.contract import hints
from estimators.supervisor import neighbours


@pytest.mark.parametrize(
    ("code", "there", "expected"),
    [
        (
            "p/train.py",
            "p/helper.py",
            "helper.py is next to train.py, but only train.py was sent. To send the whole folder, set source_dir='.'",
        ),
        ("p/src/train.py", "p/src/helper/__init__.py", "source_dir='src', entry_point='train.py' (--source-dir src)"),
        ("q/train.py", "q/helper.py", "source_dir='{root}/q', entry_point='train.py' (--source-dir {root}/q)"),
        (
            "p/src",
            "p/helper.py",
            "next to src/, but only src/ was sent. To send helper.py too, set dependencies=['helper.py']",
        ),
        ("p/train.py", "p/other.py", None),
    ],
)
def test_where_a_module_lies(tmp_path: Path, code: str, there: str, expected: str | None) -> None:
    (tmp_path / there).parent.mkdir(parents=True)
    (tmp_path / there).touch()
    said = neighbours.hint_at(hints.install("helper.sub"), tmp_path / code, f"{tmp_path}/p", tmp_path / "sent")
    assert (said is None) if expected is None else (said is not None and expected.format(root=tmp_path) in said)


def test_other_hints_are_left_alone(tmp_path: Path) -> None:
    other = "the disk is full: `fleetfit clean` frees what old jobs and caches hold."
    assert neighbours.hint_at(other, tmp_path / "train.py", str(tmp_path), tmp_path / "sent") is None


@pytest.mark.parametrize("there", ["helper.py", "helper/net.py", "app/helper.py"])
def test_a_module_that_an_ignore_file_excludes_is_named(tmp_path: Path, there: str) -> None:
    for name in (f"src/{there}", "src/train.py", "sent/train.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    arguments = (hints.install("helper.sub"), tmp_path / "src", str(tmp_path), tmp_path / "sent")
    said = neighbours.hint_at(*arguments)
    assert said is not None and f"{there.removesuffix('/net.py')} is in src/, but was not sent" in said
    (tmp_path / "src").rename(tmp_path / "old")
    assert neighbours.hint_at(*arguments) is None
