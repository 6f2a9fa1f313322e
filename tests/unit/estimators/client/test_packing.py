"""What is refused of a function before anything starts, and needs no job to be seen."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from estimators import ConfigurationError
from estimators.client.functions import modules, packing

HERE = f"{sys.version_info[0]}{sys.version_info[1]}"
AWS = "763104351884.dkr.ecr.us-east-1.amazonaws.com/tensorflow-training:2.16-cpu"


def takes(rate: float = 0.1) -> None:
    pass


def takes_all(**others: Any) -> None:
    pass


def test_what_is_tuned_has_to_be_a_parameter() -> None:
    packing.describe(takes, hyperparameters={}, channels=(), later=["rate"])
    packing.describe(takes_all, hyperparameters={}, channels=(), later=["anything"])
    with pytest.raises(ConfigurationError, match=r"hyperparameter of takes\(\) 'rat'. Did you mean 'rate'"):
        packing.describe(takes, hyperparameters={}, channels=(), later=["rat"])


@pytest.mark.parametrize("image", [None, "mine:py27", f"{AWS}-py{HERE}", f"{AWS}-py{HERE}-ubuntu20.04-sagemaker"])
def test_an_image_with_this_python_or_an_unknown_one_is_taken(image: str | None) -> None:
    packing.check_image(takes, image)


@pytest.mark.parametrize("image", [f"{AWS}-py27", f"{AWS}-py27-ubuntu20.04-sagemaker"])
def test_an_image_with_another_python_is_refused(image: str) -> None:
    with pytest.raises(ConfigurationError, match=r"takes\(\) is packed by Python .* has Python 2\.7"):
        packing.check_image(takes, image)


#: An import in each kind of statement that has others within it.
IMPORTS = """
import first, first.part
if True: import within_if
else: from within_else import a
try:
    import within_try
except* ImportError:
    import within_except
else:
    import within_no_except
finally:
    import within_finally
for _ in (): import within_for
else: import within_no_break
while False: import within_while
with open("x") as file: import within_with
class Model:
    import within_class
    async def train(self):
        async with self:
            import within_method
match 1:
    case 1:
        import within_case
from . import beside
"""


def test_modules_that_the_projects_modules_import_go_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever in the file they are imported; and once more when the file has been changed."""
    wanted = {name.partition(".")[0].strip(",") for name in IMPORTS.split() if name.startswith(("first", "within_"))}
    for name in (*wanted, "later"):
        (tmp_path / f"{name}.py").touch()
    main = tmp_path / "of_the_project.py"
    main.write_text(IMPORTS if sys.version_info >= (3, 11) else IMPORTS.replace("except*", "except"))
    monkeypatch.syspath_prepend(tmp_path)
    code = compile("import of_the_project", "<function>", "exec")

    def found() -> set[str]:
        return {path.stem for path in modules.project_modules(b"N.", [code]).values()}

    assert found() == {main.stem, *wanted}
    main.write_text("import later")
    os.utime(main, (1, 1))  # a clock may be slower than this test
    assert found() == {main.stem, "later"}


CALLER = """
import functools

def helper():
    import by_a_helper

class Base:
    def inherited(self):
        import by_a_base

class Model(Base):
    def train(self):
        import by_a_method

    @property
    def loss(self):
        import by_a_property

def timed(function):
    @functools.wraps(function)
    def inner():
        import decorating
        function()
    return inner

@timed
def step():
    import decorated

def default():
    import by_a_default

def train(then=default):
    helper()
    Model().train()
    step()
    then()

def unused():
    import by_nobody
"""


def test_modules_that_only_what_a_function_uses_imports_come_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = {"by_a_method", "by_a_property", "by_a_base"}
    names = {*methods, "by_a_helper", "decorated", "decorating", "by_a_default"}
    for name in (*names, "by_nobody"):
        (tmp_path / f"{name}.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    caller: dict[str, Any] = {"__name__": "__main__"}
    exec(CALLER, caller)

    def brought(function: Any) -> set[str]:
        packed = packing.pack(function, hyperparameters={}, channels=(), limit=1_000_000)
        return {name.removesuffix(".py") for name in packed.modules}

    assert brought(caller["train"]) == names
    assert brought(caller["Model"]().train) == methods
    assert brought(functools.partial(caller["step"])) == {"decorated", "decorating"}
