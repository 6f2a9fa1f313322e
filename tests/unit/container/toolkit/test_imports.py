"""What an importer imports for a script, by the script's source."""

from __future__ import annotations

from pathlib import Path

import pytest

from container.toolkit.importer import importer, imports


def read(folder: Path, script: str, files: dict[str, str] | None = None) -> imports.Imports:
    for name, text in {"train.py": script, **(files or {})}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
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


def test_after_the_first_act_nothing_is(tmp_path: Path) -> None:
    script = """
import matplotlib
matplotlib.use("Agg")
import tensorflow as tf
def main():
    import horovod.tensorflow as hvd
"""
    assert statements(tmp_path, script) == ["import matplotlib"]


def test_settings_that_come_first_are_kept(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        'import os\nos.environ["A"] = "1"\nos.environ.setdefault("B", "2")\nimport tensorflow\n',
    )
    assert found.settings == (("A", "1", False), ("B", "2", True))
    assert found.statements == ("import tensorflow",)


@pytest.mark.parametrize(
    ("script", "on_use"),
    [
        ("import torch\ndef make(of): return torch.optim.SGD(of)\n", ("torch._dynamo",)),
        ("from torch import nn, optim\nprint()\n", ("torch._dynamo",)),
        ("import torch, nets\n", ("torch._dynamo",)),
        ("import os, torch\nprint(os.environ['TORCHELASTIC_RUN_ID'])\ntorch.optim.SGD([])\n", ("torch._dynamo",)),
        ("import torch\ntorch.load('optimal')\n", ()),
        ("import numpy\noptim = 1\n", ()),
        ("import torch, os\nos.environ['TORCH_COMPILE_DISABLE'] = '1'\ntorch.optim.SGD([])\n", ()),
        ("import torch, os\nos.environ.update(TORCHINDUCTOR_CACHE_DIR='x')\ntorch.optim.SGD([])\n", ()),
        ("import torch\nimport torch._dynamo\ntorch.optim.SGD([])\n", ()),
    ],
)
def test_what_a_package_imports_when_it_is_used_is_imported_once_for_all_ranks(
    script: str, on_use: tuple[str, ...], tmp_path: Path
) -> None:
    """If the script uses it so, and has no word in how."""
    nets = "import torch\ndef made(of): return torch.optim.SGD(of)\n"
    assert read(tmp_path, script, {"nets.py": nets}).on_use == on_use
    late = "import os\nos.environ['TORCH_COMPILE_DISABLE'] = '1'\n"
    assert read(tmp_path, script, {"nets.py": nets, "pkg/settings.py": late}).on_use == ()


#: What may change what is imported after it, or what that reads.
ACTS = [
    'os.environ["A"] = str(1)',
    'os.environ.update(A="1")',
    'os.environ.pop("A", None)',
    'os.environ |= {"A": "1"}',
    'del os.environ["A"]',
    'os.putenv("A", "1")',
    "for name in ('A', 'B'):\n    os.environ[name] = '1'",
    "load_dotenv()",
    "setup.environment()",
    'sys.path.insert(0, "lib")',
    'sys.path = ["lib"]',
    'sys.path += ["lib"]',
    "from sys import path\npath.insert(0, 'lib')",
    'sys.modules["a"] = None',
    "sys.meta_path.append(finder)",
    'exec("import os")',
    "import mpi4py",
    "import wandb",
    "if True:\n    os.environ['A'] = '1'",
    "try:\n    import missing_of_all\nexcept ImportError:\n    os.environ['A'] = '1'",
    "def f():\n    os.environ['A'] = '1'\nf()",
    "@f\ndef g(): ...",
    "def f(x=g()): ...",
    "class C:\n    os.environ['A'] = '1'",
    "class C(f()): ...",
    "x = [f() for _ in '1']",
    'print("begins")',
    "logging.basicConfig()",
    'warnings.filterwarnings("ignore")',
    "from warnings import filterwarnings\nfilterwarnings('ignore')",
    'subprocess.run([sys.executable, "-m", "pip", "install", "tensorflow"])',
    "os.chdir('lib')",
    "with open('a') as file: ...",
    "from compiled import *",
    "os = type('os', (), {})\nos.environ['A'] = '1'",
    "environ = {}\nenviron['A'] = '1'",
    "from os import environ\nenviron |= {'A': '1'}",
    "path = sys.path\npath += ['lib']",
    "if sys.argv:\n    env = {}\nelse:\n    env = os.environ\nenv['A'] = '1'",
    "x = max([1, 2], key=f)",
    "x = sorted([1], key=lambda one: os.environ.update(A='1'))",
    "x = int(**f)",
    "def f() -> g(): ...",
    "class C(metaclass=M): ...",
    "class M(type): ...",
    "class C:\n    def __init_subclass__(cls): os.environ['A'] = '1'",
    "class C:\n    global os\n    os = None",
    "from pathlib import Path\nPath('a').replace('b')",
    "try:\n    N = int(os.environ['B'])\nexcept KeyError:\n    os.environ['A'] = '1'",
    "try:\n    import winreg_of_none\n    os.environ['A'] = '1'\nexcept ImportError:\n    pass",
    "try:\n    from math import none\nexcept ImportError:\n    os.environ['A'] = '1'",
    "try:\n    import json\nfinally:\n    print()",
    "import mere.inner",
    "from mere import inner",
]


@pytest.mark.parametrize("line", ACTS)
def test_nothing_is_taken_after_what_is_not_known_to_be_harmless(tmp_path: Path, line: str) -> None:
    script = f"import logging, os, subprocess, sys, warnings\nimport numpy\n{line}\nimport tensorflow\n"
    found = statements(tmp_path, script, {"compiled.pyc": "", "mere/inner.py": ""})
    assert found == ["import numpy"]


@pytest.mark.parametrize("line", ACTS)
def test_nothing_is_taken_after_an_own_module_that_does_it(tmp_path: Path, line: str) -> None:
    files = {"parts/__init__.py": "", "parts/first.py": f"import logging, os, subprocess, sys, warnings\n{line}\n"}
    script = "from parts import first\nimport tensorflow\n"
    assert statements(tmp_path, script, {**files, "compiled.pyc": "", "mere/inner.py": ""}) == []


@pytest.mark.parametrize(
    "line",
    [
        '"Words."',
        "RANK = int(os.environ.get('RANK', '0'))",
        "HOME = os.environ['HOME']",
        "LIBRARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), 'lib')",
        "FOLDER = Path(__file__).resolve().parent / 'data'",
        "SIZE: int = 64 * 1024 if sys.platform == 'linux' else 1",
        "NAMES = {str(name) for name in ()} if False else [n for n in 'a b'.split()]",
        "LOG = logging.getLogger(__name__)",
        "HOSTS = json.loads(os.environ.get('SM_HOSTS') or '[]')",
        "A, (B, C) = 1, (2, 3)",
        "f = lambda x=1: load_dotenv()",
        "def f(x: int = 1, *, y='a') -> None:\n    os.environ['A'] = str(x)",
        "@dataclasses.dataclass(frozen=True)\nclass C:\n    x: int = 1\n    @property\n    def y(self): ...",
        "class C(logging.Handler):\n    'Words.'\n    def emit(self, record): print(record)",
        "if TYPE_CHECKING:\n    import pandas",
        "if sys.version_info >= (3, 11):\n    import tomllib\nelse:\n    tomllib = None",
        "try:\n    import tomllib\nexcept ImportError:\n    raise SystemExit('no')",
        "assert sys.version_info > (3, 9), 'too old'",
        "try:\n    from math import tau\nexcept ImportError:\n    tau = 6.28\n",
        "import abc\nclass C(abc.ABC, metaclass=abc.ABCMeta):\n    @abc.abstractmethod\n    def f(self): ...",
        "@dataclasses.dataclass\nclass C:\n    x: list = dataclasses.field(default_factory=list)",
    ],
)
def test_what_only_looks_or_defines_is_harmless(tmp_path: Path, line: str) -> None:
    head = "import dataclasses, json, logging, os, sys\nfrom pathlib import Path\nfrom typing import TYPE_CHECKING\n"
    assert statements(tmp_path, f"{head}{line}\nimport tensorflow\n") == ["import tensorflow"]


@pytest.mark.parametrize(
    "line",
    [
        "env = os.environ\nenv['TF_USE_LEGACY_KERAS'] = '1'",
        "from os import environ as e\ne['TF_USE_LEGACY_KERAS'] = '1'",
        "from os import environ\nenviron['TF_USE_LEGACY_KERAS'] = '1'",
        "import os as system\nsystem.environ['TF_USE_LEGACY_KERAS'] = '1'",
    ],
)
def test_the_environment_is_known_by_other_names(tmp_path: Path, line: str) -> None:
    found = read(tmp_path, f"import os\n{line}\nimport tensorflow\n")
    assert found.settings == (("TF_USE_LEGACY_KERAS", "1", False),)
    assert found.statements == ("import tensorflow",)


def test_a_setting_after_an_import_is_too_late_to_be_made_first(tmp_path: Path) -> None:
    found = read(tmp_path, 'import os\nimport numpy\nos.environ["A"] = "1"\nimport tensorflow\n')
    assert (found.statements, found.settings) == (("import numpy",), ())


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
    assert found.statements == ("import tensorflow", "import scipy", "import numpy", "import pandas")
    assert {"train", "model", "parts"} <= found.names


def test_a_mere_folder_of_an_installed_packages_name_is_not_imported(tmp_path: Path) -> None:
    files = {"numpy/data.csv": "", "mere/inner.py": "import scipy"}
    assert statements(tmp_path, "import numpy\nimport mere.inner\nimport tensorflow", files) == ["import numpy"]


def test_imports_between_an_own_packages_modules_are_followed(tmp_path: Path) -> None:
    files = {
        "parts/__init__.py": "from .net import Net\nfrom . import data\n",
        "parts/net.py": "import tensorflow\nfrom .inner.deep import x\n",
        "parts/data.py": "import pandas\n",
        "parts/inner/__init__.py": "",
        "parts/inner/deep.py": "from ..data import y\nimport scipy\n",
    }
    assert statements(tmp_path, "import parts.net\nimport numpy\n", files) == [
        "import tensorflow",
        "import pandas",
        "import scipy",
        "import numpy",
    ]


def test_what_the_projects_own_modules_set_counts(tmp_path: Path) -> None:
    script = "import settings\nimport tensorflow\n"
    found = read(tmp_path, script, {"settings.py": "import os\nos.environ['A'] = '1'\n"})
    assert (found.settings, found.statements) == ((("A", "1", False),), ("import tensorflow",))


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
        (("/venv/python", "train.py"), {"PYTHONBREAKPOINT": "ray.util.rpdb._driver_set_trace"}, True),
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
