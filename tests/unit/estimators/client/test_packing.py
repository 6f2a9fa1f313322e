"""What of a function is packed, and what is refused of it before anything starts."""

from __future__ import annotations

import ast
import functools
import json
import os
import runpy
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import pytest

from container.toolkit.importer import imports
from estimators import ConfigurationError, Estimator, TensorFlow
from estimators.client.functions import modules, packing, runner
from estimators.inputs import Channel

HERE = f"{sys.version_info[0]}{sys.version_info[1]}"
AWS = "763104351884.dkr.ecr.us-east-1.amazonaws.com/tensorflow-training:2.16-cpu"


def pack(function: Any, limit: int = 1_000_000, **hyperparameters: Any) -> packing.Packed:
    return packing.pack(function, hyperparameters=hyperparameters, channels=(), limit=limit)


def unpack(packed: packing.Packed, folder: Path) -> None:
    for name, content in packed.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def takes(rate: float = 0.1) -> None:
    pass


def takes_all(**others: Any) -> None:
    pass


def test_what_is_tuned_has_to_be_a_parameter() -> None:
    packing.describe(takes, hyperparameters={}, channels=(), later={"rate": [1, 0.5]})
    packing.describe(takes_all, hyperparameters={}, channels=(), later={"anything": ["a"]})
    with pytest.raises(ConfigurationError, match=r"takes\(\) expects float, got 'a'"):
        packing.describe(takes, hyperparameters={}, channels=(), later={"rate": [1, "a"]})
    with pytest.raises(ConfigurationError, match=r"hyperparameter of takes\(\) 'rat'. Did you mean 'rate'"):
        packing.describe(takes, hyperparameters={}, channels=(), later={"rat": [1]})


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
        return {name.removesuffix(".py") for name in pack(function).modules}

    assert brought(caller["train"]) == names
    assert brought(caller["Model"]().train) == methods
    assert brought(functools.partial(caller["step"])) == {"decorated", "decorating"}


# --- what is refused ---


def generator() -> Any:
    yield 1


async def asynchronous() -> None:
    return None


class Session:
    """Holds what cannot be packed, somewhere within."""

    def __init__(self) -> None:
        self.settings = {"lock": threading.Lock()}


def takes_epochs(epochs: int, rate: float = 0.1) -> None:
    pass


def takes_by_place(epochs: int, /) -> None:
    pass


def takes_a_channel(data: Channel) -> None:
    pass


def nothing() -> None:
    pass


@pytest.mark.parametrize(
    ("function", "hyperparameters", "words"),
    [
        (generator, {}, r"generator\(\) is a generator"),
        (asynchronous, {}, r"asynchronous\(\) is async"),
        (Session, {}, "Session is a class"),
        (takes_epochs, {}, r"takes_epochs\(\) needs hyperparameter 'epochs'"),
        (takes_epochs, {"epoch": 1}, r"hyperparameter of takes_epochs\(\) 'epoch'. Did you mean 'epochs'"),
        (takes_epochs, {"epochs": "many"}, r"takes_epochs\(\) expects int, got 'many'"),
        (takes_epochs, {"epochs": True}, r"takes_epochs\(\) expects int, got True"),
        (takes_by_place, {"epochs": 1}, "by position only"),
        (takes_a_channel, {}, "needs channel 'data'"),
        (nothing, {"epochs": 1}, r"hyperparameter of nothing\(\) 'epochs'"),
    ],
)
def test_what_does_not_fit_is_refused(function: Any, hyperparameters: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        pack(function, **hyperparameters)


def test_what_cannot_be_sent_is_named_and_what_is_too_large_with_its_size() -> None:
    session, lock, table, small = Session(), threading.Lock(), os.urandom(11_000_000), b"x"
    words = r"lock \(a _thread\.lock: cannot pickle .*; session\.settings\['lock'\] \(a _thread"
    with pytest.raises(ConfigurationError, match=words):
        pack(lambda: (session, lock))
    words = r"captures 11\.0 MB of values, and the limit is 10\.0 MB\. The values are: table \(11\.0 MB\)"
    with pytest.raises(ConfigurationError, match=words):
        pack(lambda: len(table) + len(small), limit=10_000_000)


def test_files_of_one_name_keep_their_own_lines(tmp_path: Path) -> None:
    functions = {}
    for name in ("outer", "inner"):
        (tmp_path / name).mkdir()
        place = tmp_path / name / "cell.py"
        call = "inner()" if name == "outer" else "1 / 0"
        place.write_text(f"def {name}():\n    return {call}  # of {name}\n")
        exec(compile(place.read_text(), str(place), "exec"), functions)
    functions["inner"].__module__ = functions["outer"].__module__ = "__main__"
    packed = pack(functions["outer"])
    texts = [text for name, text in packed.files.items() if name.startswith("fleetfit_function/sources/")]
    assert sorted(texts) == [
        b"def inner():\n    return 1 / 0  # of inner\n",
        b"def outer():\n    return inner()  # of outer\n",
    ]


def test_another_python_is_refused_on_the_host(tmp_path: Path) -> None:
    packed = pack(nothing)
    unpack(packed, tmp_path)
    described = tmp_path / "fleetfit_function" / "function.json"
    described.write_text(json.dumps({**json.loads(described.read_text()), "python": "3.4"}))
    with pytest.raises(SystemExit, match=r"nothing\(\) was packed by Python 3.4, but this host has Python"):
        runpy.run_path(str(tmp_path / packed.program), run_name="__main__")


@pytest.mark.parametrize("edit", ['    """Not yet closed.\n', "    import torch\n"])
def test_the_source_of_a_file_that_has_been_changed_is_unknown(tmp_path: Path, edit: str) -> None:
    script, made = tmp_path / "train.py", {"__name__": "__main__"}
    begin, head, body = "import json\n", "def train():\n", "    import json\n    return json.dumps(len('a') + 1)\n"
    script.write_text(begin + head + body)
    for statement in ast.parse(script.read_text()).body:  # as notebooks execute cells
        exec(compile(ast.Module([statement], []), str(script), "exec"), made)
    assert packing._source_of(made["train"]) == {"text": head + body, "file": str(script), "line": 2}
    script.write_text(begin + head + body.replace("+", "-"))
    assert packing._source_of(made["train"]) is None
    script.write_text(f"{begin}{head}{edit}{body}")
    packed = pack(made["train"])
    assert json.loads(packed.files["fleetfit_function/function.json"])["source"] is None
    assert edit not in packed.files[packed.program].decode()


GIVEN = {"layers": [64, 32], "names": ["a", "b"], "steps": None, "rate": None, "on": 5}
KINDS = {"layers": list[int], "names": Sequence[str], "steps": int | None, "rate": Optional[float], "on": str}  # noqa: UP045


@pytest.mark.parametrize("kinds", [KINDS, {**KINDS, "steps": "None | int"}])
def test_a_list_stays_a_list_and_none_stays_none(kinds: dict[str, Any]) -> None:
    def train(layers, names, steps, rate, on): ...  # type: ignore[no-untyped-def]

    train.__annotations__ = kinds
    described = packing.describe(train, hyperparameters=GIVEN, channels=())
    assert runner.arguments(described, GIVEN) == {**GIVEN, "on": "5"}
    for wrong in ({"steps": "many"}, {"on": ["a"]}):
        with pytest.raises(ConfigurationError, match=r"train\(\) expects"):
            packing.describe(train, hyperparameters={**GIVEN, **wrong}, channels=())


@pytest.mark.parametrize(("kind", "arguments"), [(Estimator, {}), (TensorFlow, {"model_dir": False})])
def test_a_model_dir_that_nobody_passes_is_missing(kind: Any, arguments: dict[str, Any]) -> None:
    def train(model_dir: str) -> None: ...

    assert TensorFlow(entry_point=train).plan().hosts
    with pytest.raises(ConfigurationError, match=r"train\(\) needs hyperparameter 'model_dir'"):
        kind(entry_point=train, **arguments).plan()


#: Each in its own file, as cells of a notebook are.
CELLS = {
    "model": "import json\ndef model(x, layers=(1, 2)):\n    return json.dumps(x)\n",
    "train": "def train(build, epochs=1):\n    return build(epochs)\n",
}


@pytest.mark.parametrize("by_name", [False, True])
def test_a_function_that_a_partial_passes_is_packed_as_one_of_the_job(tmp_path: Path, by_name: bool) -> None:
    """Its imports are among those of the program, and its source is packed."""
    cells: dict[str, Any] = {}
    for name, text in CELLS.items():
        (tmp_path / f"{name}.py").write_text(text)
        exec(compile(text, str(tmp_path / f"{name}.py"), "exec"), cells)
    train, model = cells["train"], cells["model"]
    given = functools.partial(train, build=model) if by_name else functools.partial(train, model)
    found = packing.captured(given)
    assert found.functions == [train, model]
    assert found.values == [("default 1", 1), ("default 1", (1, 2))]
    packed = pack(given)
    assert packed.files["fleetfit_function/imports.py"].decode().startswith("import json\n")
    assert {"fleetfit_function/sources/model.py", "fleetfit_function/sources/train.py"} <= set(packed.files)


#: What is defined beside a function that calls helper(), and the statements that an importer executes for it.
USED = {
    "an import in a helper": ("def helper():\n    import tensorflow\n", ("import tensorflow",)),
    "an import in a method": ("class helper:\n    def build(self):\n        import torch\n", ("import torch",)),
    "Horovod": (
        "def helper():\n    from container import distributed\n    import torch\n",
        ("import torch", "import horovod.torch"),
    ),
    "a changed variable": (
        "def helper():\n    import os, tensorflow\n    os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\n",
        (),
    ),
    "nothing": ("def helper():\n    pass\n", ()),
}


@pytest.mark.parametrize(("text", "statements"), USED.values(), ids=USED)
def test_an_importer_serves_a_function_and_what_it_uses(tmp_path: Path, text: str, statements: tuple[str, ...]) -> None:
    cell = tmp_path / "cell.py"
    cell.write_text(f"{text}def train():\n    helper()\n")
    made: dict[str, Any] = {"__name__": "__main__"}
    exec(compile(cell.read_text(), str(cell), "exec"), made)
    code = tmp_path / "code"
    packed = pack(made["train"])
    unpack(packed, code)
    found = imports.read(code / packed.program, code, horovod=True)
    assert found.statements == statements
    assert bool(found.reason) == ("environ" in text)
