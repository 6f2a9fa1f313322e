"""What the hook tells of a process's part in a cluster, with libraries of a few lines in place of the real ones."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from hooked import Run, script

from container.system.openmpi import openmpi_prefix

WATCH = {"FLEETFIT_EVIDENCE": "1"}

LIBRARIES = {
    "horovod/__init__.py": "",
    "horovod/common/__init__.py": "",
    "mpi4py/__init__.py": "",
    "torch/__init__.py": "",
    "torch/distributed/__init__.py": "",
    "horovod/common/basics.py": """
class HorovodBasics:
    def init(self): self.ready = True
    def size(self): return 2
""",
    "horovod/tensorflow/mpi_ops.py": """
import types
from horovod.common.basics import HorovodBasics
MPI_LIB = types.SimpleNamespace(horovod_allreduce=lambda x: x, horovod_grouped_allgather=lambda x: x, horovod_rank=int)
init = HorovodBasics().init
""",
    "horovod/tensorflow/__init__.py": """
from horovod.tensorflow.mpi_ops import MPI_LIB, init
def _make_allreduce_grads_fn(name): return lambda grads: grads
""",
    "keras/__init__.py": "",
    "keras/src/__init__.py": "",
    "keras/src/optimizers/__init__.py": "",
    "keras/src/optimizers/base_optimizer.py": """
class BaseOptimizer:
    def apply(self, grads): pass
""",
    "mpi4py/MPI.py": """
class COMM_WORLD:
    @staticmethod
    def Get_size(): return SIZE
SIZE = 2
ready = False
def Init():
    global ready
    ready = True
Init_thread = Init
def Is_initialized(): return ready
def Is_finalized(): return False
""",
    "jax/__init__.py": "",
    "jax/_src/__init__.py": "",
    "jax/_src/distributed.py": "",
    "ray.py": "",
    "torch/distributed/distributed_c10d.py": """
class Backend:
    count = 0
    def _get_sequence_number_for_group(self): return self.count
class Group:
    _device_types = ["cpu"]
    def __init__(self): self.backend = Backend()
    def _get_backend(self, device): return self.backend
class _world:
    pg_map = {}
def init_process_group(backend): _world.pg_map[Group()] = backend
def destroy_process_group(): _world.pg_map.clear()
def get_world_size(): return 4
def all_reduce(tensor):
    for group in _world.pg_map: group.backend.count += 1
""",
}


@pytest.fixture
def libraries(tmp_path: Path) -> str:
    """A folder of them, for PYTHONPATH."""
    folder = tmp_path / "libraries"
    for name, text in LIBRARIES.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return str(folder)


def told(run: Run) -> dict[str, Any]:
    """Everything of a run, put together."""
    assert run.code == 0, run.err
    found: dict[str, Any] = {"joined": []}
    for event in run.events:
        assert event["kind"] == "evidence"
        data = event["data"]
        if "joined" in data:
            found["joined"].append(data["joined"])
        else:
            found.update(data)
    return found


def test_without_a_strategy_nothing_is_looked_at(tmp_path: Path) -> None:
    text = "import sys; print([type(f).__name__ for f in sys.meta_path], '_fleetfit_evidence' in sys.modules)"
    run = Run(script(tmp_path, text), tmp_path)
    assert run.events == [] and "_Finder'" not in run.out and run.out.endswith("False\n")


@pytest.mark.parametrize(
    ("text", "joined", "more"),
    [
        ("print('fine')", [], {"opened": True}),
        ("import horovod.tensorflow as hvd", [], {"exchanges": {"Horovod": 0}}),
        ("import horovod.tensorflow as hvd; hvd.init()", ["Horovod"], {"exchanges": {"Horovod": 0}, "optimizers": 0}),
        (
            "import horovod.tensorflow as hvd; hvd.init(); hvd.MPI_LIB.horovod_rank()\n"
            "assert hvd.MPI_LIB.horovod_allreduce(1) == 1 and hvd.MPI_LIB.horovod_grouped_allgather([2]) == [2]",
            ["Horovod"],
            {"exchanges": {"Horovod": 2}},
        ),
        (
            "import horovod.tensorflow as hvd; hvd.init(); hvd._make_allreduce_grads_fn('sgd')",
            ["Horovod"],
            {"optimizers": 1, "reduced": False, "stepped": False},
        ),
        (
            "import horovod.tensorflow as hvd; hvd.init(); print(hvd._make_allreduce_grads_fn('sgd')([1]))",
            ["Horovod"],
            {"optimizers": 1, "reduced": True},
        ),
        (
            "from keras.src.optimizers.base_optimizer import BaseOptimizer; BaseOptimizer().apply([1])",
            [],
            {"stepped": True},
        ),
        ("from mpi4py import MPI", [], {}),
        (
            "import importlib.util as u; u.find_spec('mpi4py.MPI'); from mpi4py import MPI; MPI.Init()",
            ["MPI"],
            {},
        ),
        ("from mpi4py import MPI; MPI.Init()", ["MPI"], {}),
        ("from mpi4py import MPI; MPI.SIZE = 1; MPI.Init()", [], {}),  # of another MPI than mpirun's
        (
            "from torch.distributed import distributed_c10d as d; d.init_process_group('gloo')",
            ["torch.distributed"],
            {"exchanges": {"torch": 0}},
        ),
        (
            "from torch.distributed import distributed_c10d as d; d.init_process_group('gloo'); d.all_reduce(1)",
            ["torch.distributed"],
            {"exchanges": {"torch": 1}},
        ),
        (
            "from torch.distributed import distributed_c10d as d; d.init_process_group('gloo'); d.all_reduce(1)\n"
            "d.destroy_process_group()",
            ["torch.distributed"],
            {"exchanges": {"torch": 1}},
        ),
        (
            "from torch.distributed import distributed_c10d as d; d.init_process_group('of another kind')\n"
            "del d.Backend._get_sequence_number_for_group",
            ["torch.distributed"],
            {"exchanges": {}},
        ),
        (
            "import os\nif os.fork():\n    os.wait()\nelse:\n    from mpi4py import MPI; MPI.Init(); os._exit(0)",
            ["MPI"],
            {},
        ),
    ],
)
def test_what_joins_and_exchanges(
    text: str, joined: list[str], more: dict[str, Any], libraries: str, tmp_path: Path
) -> None:
    found = told(Run(script(tmp_path, text), tmp_path, env=WATCH, path=libraries))
    assert found["joined"] == joined
    assert {name: found[name] for name in more} == more
    assert found["closed"] and "unknown" not in found


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("import subprocess; subprocess.run(['uname', '-p'])", True),
        ("import subprocess; subprocess.run(['true'])", False),
        ("import os; os.system('echo a')", False),
        ("import subprocess, sys; subprocess.run([sys.executable, '-c', ''])", False),
        ("import os, shlex, sys; os.system(shlex.join([sys.executable, '-c', '']))", False),
        ("import os, sys; os.posix_spawn(sys.executable, [sys.executable, '-c', ''], os.environ); os.wait()", False),
        ("import os, sys; os.execv(sys.executable, [sys.executable, '-c', ''])", False),
        (
            "import multiprocessing as m\nif __name__ == '__main__':\n"
            "    p = m.get_context('spawn').Process(target=print); p.start(); p.join()",
            False,
        ),
        ("import ray", False),
        ("import jax._src.distributed", False),  # a version that is not known
    ],
)
def test_what_may_join_others_unseen(text: str, known: bool, libraries: str, tmp_path: Path) -> None:
    found = told(Run(script(tmp_path, text), tmp_path, env=WATCH, path=libraries))
    assert ("unknown" not in found) is known


@pytest.mark.horovod
def test_the_real_mpi(tmp_path: Path) -> None:
    """Its module is found by a finder of its own; alone it joins nobody."""
    text = "from mpi4py import MPI; print(MPI.COMM_WORLD.Get_size(), MPI.Get_library_version()[:8])"
    run = Run(
        [sys.executable, "-c", text], tmp_path, env={**WATCH, "OPAL_PREFIX": openmpi_prefix(sys.executable) or ""}
    )
    found = told(run)
    assert run.out.startswith("1 ") and found["joined"] == [] and "unknown" not in found


def test_a_script_s_own_json_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('a trap was imported')\n")
    run = Run([sys.executable, "-c", "print('fine')"], tmp_path, env=WATCH, path=str(tmp_path))
    assert "fine" in run.out and "trap" not in run.err
