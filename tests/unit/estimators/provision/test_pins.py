"""What is pinned is what fleetfit declares, on every Python that it runs on, and names no index."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.version import Version

from estimators.provision import pins

ROOT = Path(__file__).resolve().parents[4]
#: It is tested in an environment of its own.
ELSEWHERE = {"sagemaker"}


def declared() -> list[Requirement]:
    """The requirements of setup.py's extras, which are lists of texts under names of their own."""
    assigned = [node for node in ast.parse((ROOT / "setup.py").read_text()).body if isinstance(node, ast.Assign)]
    lists = [node.value for node in assigned if isinstance(node.value, ast.List)]
    texts = [one.value for found in lists for one in found.elts if isinstance(one, ast.Constant)]
    requirements = [Requirement(str(text)) for text in texts]
    return [one for one in requirements if one.name not in ELSEWHERE]


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13"])
def test_each_requirement_has_one_version_that_it_allows(python: str) -> None:
    here = {**default_environment(), "python_version": python, "python_full_version": f"{python}.4"}
    pinned: dict[str, list[Version]] = {}
    for line in pins.file(ROOT).read_text().splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line)
            if pin.marker is None or pin.marker.evaluate(here):
                (only,) = pin.specifier
                assert only.operator == "==", line
                pinned.setdefault(pin.name.lower().replace("_", "-"), []).append(Version(only.version))
    assert len(declared()) > 30
    for requirement in declared():
        versions = pinned[requirement.name.lower().replace("_", "-")]
        assert len(versions) == 1 and versions[0] in requirement.specifier, (str(requirement), versions)


def test_no_index_and_no_build_of_one_is_named() -> None:
    text = pins.file(ROOT).read_text()
    assert "://" not in text and "+" not in text and "--" not in text.replace(" -- ", "")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("torch==2.13.0+cpu", "torch==2.13.0"),
        ("torch==2.13.0+cu130 ; python_version < '3.12'", "torch==2.13.0 ; python_version < '3.12'"),
        ("numpy==2.2.6 ; python_full_version < '3.11'", "numpy==2.2.6 ; python_full_version < '3.11'"),
        ("# a comment: 1+1", "# a comment: 1+1"),
    ],
)
def test_a_build_is_not_pinned(line: str, expected: str) -> None:
    assert pins.without_local(line) == expected
