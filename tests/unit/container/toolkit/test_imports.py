"""What an importer imports for a script, by the script's source."""

from __future__ import annotations

from pathlib import Path

import pytest

from container.toolkit.importer import importer, imports


def read(folder: Path, script: str, files: dict[str, str] | None = None) -> imports.Imports:
    for name, text in {"train.py": script, **(files or {})}.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    found = imports.read(folder / "train.py", folder)
    assert found is not None
    return found


def statements(folder: Path, script: str, files: dict[str, str] | None = None) -> list[str]:
    return list(read(folder, script, files).statements)


def test_what_stands_at_the_beginning_is_imported_in_its_order(tmp_path: Path) -> None:
    script = '''
"""Words."""
from __future__ import annotations
import os, numpy as np
from pandas import DataFrame
import tensorflow.compat.v1 as tf, scipy
SIZE = 64
def main(): ...
import sklearn
'''
    assert statements(tmp_path, script) == [
        "import numpy",
        "from pandas import DataFrame",
        "import tensorflow.compat.v1",
        "import scipy",
        "import sklearn",
    ]


def test_after_the_first_act_only_frameworks_are(tmp_path: Path) -> None:
    script = """
import matplotlib
matplotlib.use("Agg")
import matplotlib.pyplot
import tensorflow as tf
def main():
    import horovod.tensorflow as hvd
    import pandas
"""
    assert statements(tmp_path, script) == ["import matplotlib", "import tensorflow", "import horovod.tensorflow"]


def test_keras_is_imported_where_it_is_used(tmp_path: Path) -> None:
    (taken,) = statements(tmp_path, "import tensorflow as tf\nx = tf.keras.Model()")[1:]
    assert taken.startswith("from tensorflow import keras")
    assert statements(tmp_path, "import tensorflow as tf\nx = tf.constant(1)") == ["import tensorflow"]


def test_settings_that_come_first_are_kept(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        'import os\nos.environ["A"] = "1"\nos.environ.setdefault("B", "2")\nimport tensorflow\n',
    )
    assert found.settings == (("A", "1", False), ("B", "2", True))
    assert found.statements == ("import tensorflow",)


@pytest.mark.parametrize(
    "line",
    [
        'os.environ["A"] = str(1)',
        'os.environ.update(A="1")',
        'os.environ.pop("A", None)',
        'del os.environ["A"]',
        'os.putenv("A", "1")',
        "load_dotenv()",
        "setup.environment()",
        'sys.path.insert(0, "lib")',
        'sys.path = ["lib"]',
        'sys.modules["a"] = None',
        'if "a" in sys.modules:\n    pass',
        "sys.meta_path.append(finder)",
        'exec("import os")',
        "import mpi4py",
        "import wandb",
        "if True:\n    os.environ['A'] = '1'",
        "def f():\n    os.environ['A'] = '1'\nf()",
    ],
)
def test_nothing_is_taken_after_what_changes_the_environment_or_the_path(tmp_path: Path, line: str) -> None:
    script = f"import os, sys\nimport numpy\n{line}\nimport tensorflow\n"
    assert statements(tmp_path, script) == ["import numpy"]


def test_a_setting_after_an_import_is_too_late_to_be_made_first(tmp_path: Path) -> None:
    found = read(tmp_path, 'import os\nimport numpy\nos.environ["A"] = "1"\nimport tensorflow\n')
    assert (found.statements, found.settings) == (("import numpy",), ())


def test_looking_at_the_environment_does_no_harm(tmp_path: Path) -> None:
    script = 'import os\nRANK = int(os.environ.get("RANK", "0"))\nHOME = os.environ["HOME"]\nimport tensorflow\n'
    assert statements(tmp_path, script) == ["import tensorflow"]


def test_the_projects_own_modules_are_read_and_not_imported(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        "import model\nfrom parts import one\nimport pandas\n",
        {
            "model.py": "import tensorflow as tf\nimport scipy\n",
            "parts/__init__.py": "",
            "parts/one.py": "import numpy",
        },
    )
    assert found.statements == ("import tensorflow", "import scipy", "import pandas")
    assert {"train", "model", "parts"} <= found.names


def test_what_the_projects_own_modules_set_counts(tmp_path: Path) -> None:
    script = "import settings\nimport tensorflow\n"
    assert statements(tmp_path, script, {"settings.py": "import os\nos.environ.update(A='1')\n"}) == []


def test_modules_that_import_each_other_are_read_once(tmp_path: Path) -> None:
    files = {"a.py": "import b\nimport numpy", "b.py": "import a\nimport scipy"}
    assert statements(tmp_path, "import a\n", files) == ["import scipy", "import numpy"]


@pytest.mark.parametrize("name", ["json", "random", "types"])
def test_a_module_with_a_name_of_pythons_prevents_it(tmp_path: Path, name: str) -> None:
    (tmp_path / f"{name}.py").touch()
    (tmp_path / "train.py").write_text("import tensorflow\n")
    assert imports.read(tmp_path / "train.py", tmp_path) is None


@pytest.mark.parametrize("text", [b"import (", b"\xff\xfe\0", b"x = '" + b"(" * 5000])
def test_what_is_no_python_prevents_it(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "train.py").write_bytes(text)
    assert imports.read(tmp_path / "train.py", tmp_path) is None


def test_a_script_that_is_not_there_prevents_it(tmp_path: Path) -> None:
    assert imports.read(tmp_path / "train.py", tmp_path) is None


def test_the_packages_are_those_that_are_installed(tmp_path: Path) -> None:
    script = (
        "import json\nfrom container import distributed\nimport horovod.tensorflow as hvd\nfrom keras import Model\n"
    )
    assert read(tmp_path, script).packages == {"horovod", "keras"}


@pytest.mark.parametrize(
    ("fork", "packages", "wanted"),
    [
        (None, {"tensorflow", "numpy"}, True),
        (None, {"torch"}, True),
        (None, {"numpy"}, False),
        (None, set(), False),
        ("1", {"numpy"}, True),
        ("1", set(), False),
        ("0", {"tensorflow"}, False),
    ],
)
def test_only_what_takes_long_is_worth_an_importer(fork: str | None, packages: set[str], wanted: bool) -> None:
    environment = {"FLEETFIT_FORK": fork} if fork else {}
    assert importer.is_wanted(("python", "train.py"), environment, "python", packages) is wanted


@pytest.mark.parametrize(
    ("command", "environment", "wanted"),
    [
        (("/venv/python", "train.py", "--lr", "1"), {}, True),
        (("/venv/python", "train.py"), {"PYTHONPATH": "/a", "PYTHONHASHSEED": "1"}, True),
        (("/venv/python", "train.py"), {"FLEETFIT_FORK": "0"}, False),
        (("/venv/python", "train.py"), {"PYTHONINSPECT": "1"}, False),
        (("/venv/python", "train.py"), {"PYTHONHOME": "/usr"}, False),
        (("/venv/python", "-m", "train"), {}, False),
        (("/usr/bin/python3", "train.py"), {}, False),
        (("/bin/sh", "./train.sh"), {}, False),
        (("./train",), {}, False),
    ],
)
def test_for_which_commands_there_is_one(command: tuple[str, ...], environment: dict[str, str], wanted: bool) -> None:
    assert importer.is_wanted(command, environment, "/venv/python", {"tensorflow"}) is wanted


def test_a_folder_that_cannot_be_read_prevents_it(tmp_path: Path) -> None:
    assert imports.read(tmp_path / "train.py" / "none.py", tmp_path / "missing") is None


def test_the_folder_of_importers_is_the_users_alone(tmp_path: Path) -> None:
    with importer._locked(tmp_path / "own") as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    (tmp_path / "link").symlink_to(tmp_path / "own")
    for name in ("open", "link"):
        with pytest.raises(OSError), importer._locked(tmp_path / name):
            pass
