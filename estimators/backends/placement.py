"""Describe where a job's hosts would run, for ``plan()``. A backend's ``placement`` returns the description."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping
from pathlib import Path

from container.contract.environment import Machine
from container.contract.frozen import dataclass
from container.contract.layout import DEFAULT_BASE_DIR, MLTree
from container.contract.strategies import MPI
from container.system import host_machine as machines
from estimators.backends.config import BackendFacts
from estimators.backends.local import checkpoint_dir
from estimators.job.request import RunOptions, TrainingJobSpec


@dataclass(frozen=True, kw_only=True)
class ClusterPlacement:
    """A description of a job's hosts before they are started.

    Attributes:
        machine: The machine on which each host would run.
        facts: The values in the hosts' configuration that depend on the backend.
        base_dir: The root of a host's tree. ``{host}`` stands for the host's name.
        checkpoints: The folder of checkpoints that all hosts share. None if each host has a separate folder.
        entry_points: The command that would start each host: the host's name -> the argv list.
        preparations: The commands that would run before the hosts are started, as argv lists.
        warnings: Warnings for the user.
        notes: Additional facts to show, such as machine types and prices.
    """

    machine: Machine
    facts: BackendFacts
    base_dir: str = DEFAULT_BASE_DIR
    checkpoints: str | None = None
    entry_points: Mapping[str, tuple[str, ...]]
    preparations: tuple[tuple[str, ...], ...] = ()
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def tree(self, host: str) -> MLTree:
        """Return the file tree that a host would have."""
        tree = MLTree(Path(self.base_dir.replace("{host}", host)))
        return dataclasses.replace(tree, shared_checkpoints=self.checkpoints or str(tree.checkpoints))


def on_this_machine(spec: TrainingJobSpec, options: RunOptions, record: Path) -> ClusterPlacement:
    """Return the placement of hosts that are processes on this machine.

    Args:
        spec: The job.
        options: The run options of the job.
        record: The folder of the job's record.
    """
    machine, found_mpirun = _machine(options.python, isinstance(spec.strategy, MPI))
    warnings: tuple[str, ...] = ()
    if isinstance(spec.strategy, MPI) and not found_mpirun:
        warnings = ("mpirun was not found on this machine. `fleetfit doctor` tells how to install it.",)
    package = Path(machines.__file__).resolve().parents[1]
    return ClusterPlacement(
        machine=machine,
        facts=BackendFacts(network_interface="lo"),
        base_dir=str(record / "hosts" / "{host}" / "ml"),
        checkpoints=os.path.realpath(checkpoint_dir(spec) or record / "checkpoints"),
        entry_points=dict.fromkeys(spec.hosts, (options.python, "-I", str(package / "__main__.py"), "train")),
        warnings=warnings,
    )


@functools.lru_cache(maxsize=8)
def _machine(python: str, with_mpi: bool) -> tuple[Machine, bool]:
    """Return a description of this machine for a plan, and whether mpirun was found."""
    found = dataclasses.replace(machines.this_machine(with_mpi=with_mpi), python=python, shared=True)
    if with_mpi and found.mpirun is None:
        return dataclasses.replace(found, mpirun="mpirun"), False
    return found, True
