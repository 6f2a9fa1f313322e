"""What an importer imports for a script, by the script's source."""

from __future__ import annotations

from pathlib import Path

import pytest

from container.system import importers
from container.toolkit.importer import importer, imports


def read(folder: Path, script: str, files: dict[str, str] | None = None) -> imports.Imports:
    for name, text in {"train.py": script, **(files or {})}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return imports.read(folder / "train.py", folder)


def test_the_imports_of_the_head_are_taken_in_their_order(tmp_path: Path) -> None:
    script = '''
"""Words."""
from __future__ import annotations
import os, numpy as np
from pandas import DataFrame
import tensorflow.compat.v1 as tf, scipy
SIZE = 64
import sklearn
def main(): ...
import xgboost
'''
    assert read(tmp_path, script).statements == (
        "import numpy",
        "from pandas import DataFrame",
        "import tensorflow.compat.v1",
        "import scipy",
        "import sklearn",
    )


@pytest.mark.parametrize(
    "script",
    [
        "from container import distributed\ncluster = distributed.init()\nimport tensorflow\n",
        "import matplotlib\nmatplotlib.use('Agg')\nimport tensorflow\n",
        "import argparse\nif argparse.ArgumentParser().parse_args():\n    import tensorflow\n",
        "def main():\n    import tensorflow\nmain()\n",
        "try:\n    import tensorflow\nexcept ImportError:\n    tensorflow = None\n",
        "import os\nRANK = int(os.environ.get('RANK', '0'))\nHOME = os.environ['HOME']\nimport tensorflow\n",
        "import os, time\nbegan = time.time()\nos.environ.setdefault('TF_CPP_A', '2')\nimport tensorflow\n",
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = str(1)\nimport tensorflow\n",
        "import os\nprint()\nos.environ['XLA_FLAGS'] = str(1)\nimport tensorflow\n",
        "import os, subprocess\nsubprocess.run(['ls'], env={**os.environ, 'A': '1'})\nimport tensorflow\n",
        "class M:\n    def f(self): self.model.eval()\nimport tensorflow\n",
        "import model\n",
        "def main():\n    from parts import net\n",
    ],
)
def test_slow_packages_are_taken_wherever_they_are_imported(tmp_path: Path, script: str) -> None:
    files = {"model.py": "import torch\n", "parts/__init__.py": "", "parts/net.py": "import torch.nn\n"}
    found = read(tmp_path, script, files)
    assert found.packages - {"matplotlib"} in ({"tensorflow"}, {"torch"}) and found.reason == ""


def test_settings_that_come_first_are_kept(tmp_path: Path) -> None:
    found = read(tmp_path, 'import os\nos.environ["A"] = "1"\nos.environ.setdefault("B", "2")\nimport tensorflow\n')
    assert found.settings == (("A", "1", False), ("B", "2", True))
    assert found.statements == ("import tensorflow",)


@pytest.mark.parametrize(
    ("script", "compiler"),
    [
        ("import torch\ndef make(of): return torch.optim.SGD(of)\n", True),
        ("from torch import nn, optim\nprint()\n", True),
        ("import torch, nets\n", True),
        ("import os, torch\nprint(os.environ['TORCHELASTIC_RUN_ID'])\ntorch.optim.SGD([])\n", True),
        ("import torch\ntorch.load('optimal')\n", False),
        ("import numpy\noptim = 1\n", False),
        ("import torch, os\nos.environ['TORCH_COMPILE_DISABLE'] = '1'\ntorch.optim.SGD([])\n", False),
        ("import torch, os\nos.environ.update(TORCHINDUCTOR_CACHE_DIR='x')\ntorch.optim.SGD([])\n", False),
    ],
)
def test_pytorchs_compiler_is_imported_for_a_script_that_makes_an_optimizer(
    script: str, compiler: bool, tmp_path: Path
) -> None:
    """Unless the script has a word in how."""
    nets = "import torch\ndef made(of): return torch.optim.SGD(of)\n"
    assert ("import torch._dynamo" in read(tmp_path, script, {"nets.py": nets}).statements) is compiler


#: What may change what is imported after it, or what that reads.
HAZARDS = [
    'os.environ["TF_CPP_A"] = str(1)',
    "os.environ[name] = '1'",
    'os.environ.update(A="1")',
    'os.environ.setdefault(name, "1")',
    'os.environ.pop("TF_CPP_A", None)',
    'os.environ |= {"A": "1"}',
    'del os.environ["A"]',
    'os.putenv("A", "1")',
    "from dotenv import load_dotenv",
    'sys.path.insert(0, "lib")',
    "from sys import meta_path\nsys.meta_path.append(finder)",
    'exec("import os")',
    "importlib.import_module(name)",
    "import mpi4py",
    "import wandb",
    "if True:\n    os.environ['TF_CPP_A'] = '1'",
    "def f():\n    os.environ['TF_CPP_A'] = '1'\nf()",
    'subprocess.run([sys.executable, "-m", "pip", "install", "tensorflow"])',
    "env = os.environ",
    "from os import environ as e\ne['TF_CPP_A'] = '1'",
    "runpy.run_path('a.py')",
]


@pytest.mark.parametrize("line", HAZARDS)
@pytest.mark.parametrize("beside", [False, True])
def test_only_the_head_is_taken_where_something_may_change_later_imports(
    tmp_path: Path, line: str, beside: bool
) -> None:
    """In the script, or in a file that it imports."""
    act = f"print()\n{line}\n"
    script = f"import os, subprocess, sys\nimport numpy\n{'import acts' if beside else act}\nimport tensorflow\n"
    found = read(tmp_path, script, {"acts.py": f"import os, sys\n{act}"})
    assert found.statements == ("import numpy",)
    assert found.reason.startswith("acts.py has" if beside else "train.py has")


def test_a_hazard_is_no_reason_where_the_head_has_all(tmp_path: Path) -> None:
    found = read(tmp_path, "import tensorflow as tf, sys\nsys.path.append('lib')\nfrom tensorflow import keras\n")
    assert found.packages == {"tensorflow"}


def test_compiled_modules_end_the_head(tmp_path: Path) -> None:
    assert read(tmp_path, "import compiled\nimport numpy\n", {"compiled.pyc": ""}).statements == ()


@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_what_init_imports_is_imported_with_it(tmp_path: Path, framework: str) -> None:
    for first, taken in (("from container import distributed", True), ("import numpy", False)):
        (tmp_path / "train.py").write_text(f"{first}\nimport {framework}\n")
        for horovod in (True, False):
            found = imports.read(tmp_path / "train.py", tmp_path, horovod=horovod).statements
            assert (f"import horovod.{framework}" in found) is (horovod and taken)


def test_what_is_set_before_all_imports_may_stand_behind_an_act(tmp_path: Path) -> None:
    script = "import os, time\nbegan = time.time()\nos.environ['A'] = '1'\nimport numpy\nimport tensorflow\n"
    found = read(tmp_path, script)
    assert (found.settings, found.statements) == ((("A", "1", False),), ("import tensorflow",))


def test_what_a_module_of_the_project_imports_counts_when_it_runs(tmp_path: Path) -> None:
    """And not already when a function names it."""
    files = {"model.py": "import os\nos.environ['A'] = '1'\nimport tensorflow\n"}
    function = "def build():\n    import model\n"
    found = read(tmp_path, f"{function}import os\nos.environ['B'] = '1'\nbuild()\n", files)
    assert (found.settings, found.packages) == ((("B", "1", False),), {"tensorflow"})
    found = read(tmp_path, f"{function}import os\nimport model\nos.environ['B'] = '1'\n", files)
    assert (found.settings, found.packages) == ((("A", "1", False),), {"tensorflow"})


def test_a_package_is_read_and_not_a_module_with_its_name(tmp_path: Path) -> None:
    files = {"utils/__init__.py": "", "utils.py": "import os\nos.environ['TF_CPP_A'] = '1'\nimport torch\n"}
    found = read(tmp_path, "import utils\nimport tensorflow\n", files)
    assert (found.settings, found.packages) == ((), {"tensorflow"})


def test_a_setting_after_an_import_is_too_late_to_be_made_first(tmp_path: Path) -> None:
    found = read(tmp_path, 'import os\nimport numpy\nos.environ["TF_CPP_A"] = "1"\nimport tensorflow\n')
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
    assert {"train", "model", "parts"} <= set(found.names)


def test_imports_between_an_own_packages_modules_are_followed(tmp_path: Path) -> None:
    files = {
        "parts/__init__.py": "from .net import Net\nfrom . import data\n",
        "parts/net.py": "import tensorflow\nfrom .inner.deep import x\n",
        "parts/data.py": "import pandas\n",
        "parts/inner/__init__.py": "",
        "parts/inner/deep.py": "from ..data import y\nimport scipy\n",
    }
    found = read(tmp_path, "import parts.net\nimport numpy\n", files)
    assert found.statements == ("import tensorflow", "import pandas", "import scipy", "import numpy")


def test_what_the_projects_own_modules_set_counts(tmp_path: Path) -> None:
    script = "import settings\nimport tensorflow\n"
    found = read(tmp_path, script, {"settings.py": "import os\nos.environ['A'] = '1'\n"})
    assert (found.settings, found.statements) == ((("A", "1", False),), ("import tensorflow",))


def test_modules_that_import_each_other_are_read_once(tmp_path: Path) -> None:
    files = {"a.py": "import b\nimport numpy", "b.py": "import a\nimport scipy"}
    assert read(tmp_path, "import a\n", files).statements == ("import scipy", "import numpy")


@pytest.mark.parametrize("name", ["json", "random", "types"])
def test_a_module_with_a_name_of_pythons_prevents_it(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, "import tensorflow\n", {f"{name}.py": ""})
    assert (found.statements, found.reason) == ((), f"the script's folder has a module {name}")


@pytest.mark.parametrize("text", [b"import (", b"\xff\xfe\0", b"x = '" + b"(" * 5000])
def test_what_is_no_python_prevents_it(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "train.py").write_bytes(text)
    assert imports.read(tmp_path / "train.py", tmp_path).reason.startswith("its imports cannot be read")


def test_a_script_that_is_not_there_prevents_it(tmp_path: Path) -> None:
    assert "No such file" in imports.read(tmp_path / "train.py", tmp_path).reason


def test_the_packages_are_those_that_are_installed(tmp_path: Path) -> None:
    script = "import json\nfrom container import distributed\nimport horovod.tensorflow\nfrom keras import Model\n"
    assert read(tmp_path, script).packages == {"horovod", "keras"}


@pytest.mark.parametrize(
    ("fork", "package", "worth"),
    [
        (None, "tensorflow", True),
        (None, "torch", True),
        (None, "numpy", False),
        ("1", "numpy", True),
        ("0", "torch", False),
    ],
)
def test_only_what_takes_long_is_worth_an_importer(fork: str | None, package: str, worth: bool) -> None:
    environment = {"FLEETFIT_FORK": fork} if fork else {}
    assert importer.is_worth_it(imports.Imports((f"import {package}",)), environment) is worth
    assert not importer.is_worth_it(imports.Imports(), environment)


@pytest.mark.parametrize(
    ("command", "environment", "why"),
    [
        (("/venv/python", "train.py", "--lr", "1"), {}, ""),
        (("/venv/python", "train.py"), {"PYTHONPATH": "/a", "PYTHONHASHSEED": "1"}, ""),
        (("/venv/python", "train.py"), {"PYTHONBREAKPOINT": "ray.util.rpdb._driver_set_trace"}, ""),
        (("/venv/python", "train.py"), {"PYTHONINSPECT": "1"}, "PYTHONINSPECT is set"),
        (("/venv/python", "train.py"), {"PYTHONHOME": "/usr"}, "PYTHONHOME is set"),
        (("/venv/python", "-m", "train"), {}, "the entry point is not a Python file"),
        (("./train", "train.py"), {}, "the entry point is not a Python file"),
        (("/bin/sh", "./train.sh"), {}, "the entry point is not a Python file"),
        (("./train",), {}, "the entry point is not a Python file"),
    ],
)
def test_for_which_commands_there_is_one(command: tuple[str, ...], environment: dict[str, str], why: str) -> None:
    assert importer.refusal(command, environment, "/venv/python") == why


def test_the_folder_of_importers_is_the_users_alone(tmp_path: Path) -> None:
    with importers.locked(tmp_path / "own"):
        assert (tmp_path / "own").stat().st_mode & 0o777 == 0o700
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o755)
    (tmp_path / "link").symlink_to(tmp_path / "own")
    for name in ("open", "link"):
        with pytest.raises(OSError), importers.locked(tmp_path / name):
            pass


def test_each_of_two_files_of_one_name_is_looked_at(tmp_path: Path) -> None:
    files = {"alpha/__init__.py": "import os\nos.environ['OMP_NUM_THREADS'] = str(1)\n", "beta/__init__.py": ""}
    script = "print()\nimport alpha, beta\ndef main():\n    import torch\nmain()\n"
    found = read(tmp_path, script, files)
    assert not found.statements and found.reason.startswith("__init__.py has ")
