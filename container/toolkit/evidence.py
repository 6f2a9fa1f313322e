"""Judge whether the ranks of a job that should be distributed communicated with each other. Pure.

The hook in each rank's Python processes (``hook/_fleetfit_evidence.py``) reports what it observes. algo-1 judges all
ranks when the job has succeeded. There is no verdict if facts are unknown. Facts are unknown if an entry point is not a
Python program, if a rank has started other programs, or if a rank uses unknown libraries.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any

from container.contract.failures import Cause, Failure
from container.contract.plan import Plan, Role

#: The calls that fleetfit detects, as its messages list them.
LOOKED_FOR = (
    "hvd.init(), MPI_Init (mpi4py), container.distributed.init(), tf.distribute.Server, MultiWorkerMirroredStrategy, "
    "ParameterServerStrategy, torch.distributed.init_process_group(), jax.distributed.initialize()"
)

#: Reactions to a job whose ranks did not communicate with each other.
MODES = ("warn", "fail")


@dataclasses.dataclass
class RankEvidence:
    """The facts about one rank's communication with other ranks. The rank may consist of several processes.

    Attributes:
        ended: Whether the rank has ended.
    """

    ended: bool = False
    _opened: set[int] = dataclasses.field(default_factory=set)
    _closed: dict[int, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    _joined: dict[int, list[str]] = dataclasses.field(default_factory=dict)
    _unknown: bool = False

    def add(self, told: Mapping[str, Any]) -> None:
        """Record a report of one of the rank's processes or of the rank's host."""
        if told.get("ended"):
            self.ended = True
        pid = told.get("pid")
        if not isinstance(pid, int):
            return
        if told.get("opened"):
            self._opened.add(pid)
        if told.get("joined"):
            self._joined.setdefault(pid, []).append(str(told["joined"]))
        if told.get("unknown"):
            self._unknown = True
        if told.get("closed"):
            self._closed[pid] = told

    @property
    def joined(self) -> list[str]:
        """Return the ways in which the rank has joined other ranks, such as "Horovod". Return an empty list if it has
        joined none.
        """
        return [how for every in self._joined.values() for how in every]

    @property
    def is_apart(self) -> bool | None:
        """Return whether the rank has joined no other rank. Return None if the facts are unknown."""
        if self._joined:
            return False
        if self._unknown or (self.ended and not (self._opened and self._opened <= self._closed.keys())):
            return None
        return True

    @property
    def is_mute(self) -> bool | None:
        """Return whether the rank has joined others and then exchanged no data.

        Return None if the facts are unknown.
        """
        if not self._joined or self._unknown:
            return None
        silent = []
        for pid, how in self._joined.items():
            counts = self._closed.get(pid, {}).get("exchanges") or {}
            # The exchanges of MPI programs and of TensorFlow's servers are not counted.
            counted = [library for library in counts if any(library in name for name in how)]
            if not counted or len(counted) < len(how):
                return None
            silent.append(not any(counts[library] for library in counted))
        return all(silent)

    @property
    def is_unreduced(self) -> bool | None:
        """Return whether the rank has trained with Horovod's optimizers, but no optimizer has reduced a gradient.
        Return None if the facts are unknown.
        """
        told = [self._closed[pid] for pid in self._joined if pid in self._closed]
        if self._unknown or len(told) < len(self._joined) or not any(values.get("optimizers") for values in told):
            return None
        # A rank that only evaluates a model, or has nothing left to train, has no gradients to reduce.
        return any(values.get("stepped") for values in told) and not any(values.get("reduced") for values in told)


def is_cluster(plan: Plan) -> bool:
    """Return whether a plan has more than one process that trains or serves."""
    return sum(process.role in (Role.RANK, Role.SERVER) for process in plan.processes) > 1


def verdict(strategy: str, ranks: Collection[RankEvidence]) -> str | None:
    """Return why a successful job was not distributed. Return None if the job was distributed, or if the facts are
    unknown.

    Args:
        strategy: The strategy's name.
        ranks: The facts about each rank that runs the script.
    """
    apart = [rank.is_apart for rank in ranks]
    if all(apart) and any(rank.ended for rank in ranks):
        who = (
            f"none of the {len(ranks)} ranks joined the others, so each ran the whole script by itself"
            if len(ranks) > 1
            else "the script joined no other process, so it ran by itself"
        )
        return (
            f"the job was not distributed: under {strategy} {who}. Looked for: {LOOKED_FOR}. Ranks that connect "
            "in another way, such as by sockets of their own, are not recognized."
        )
    if any(value is not False for value in apart):
        return None
    if all(rank.is_unreduced for rank in ranks):
        return (
            f"the job was not distributed: Horovod's DistributedOptimizer reduced no gradient in any of the "
            f"{len(ranks)} ranks, so each trained a model of its own. Under Keras 3, this optimizer has no effect: set "
            "TF_USE_LEGACY_KERAS=1 in the job's environment, or use cluster.optimizer() of container.distributed."
        )
    if all(rank.is_mute for rank in ranks):
        how = ", ".join(dict.fromkeys(name for rank in ranks for name in rank.joined))
        return (
            f"the job was not distributed: its {len(ranks)} ranks joined each other ({how}) and then exchanged "
            "nothing, so each ran by itself. Looked for: Horovod's allreduce, allgather, broadcast, alltoall and "
            "reducescatter, the all-reduce and all-gather of MultiWorkerMirroredStrategy, and the collectives of "
            "torch.distributed's process groups (DistributedDataParallel, FSDP)."
        )
    return None


def judge(plan: Plan, known: Mapping[tuple[str, str], RankEvidence]) -> str | None:
    """Return the :func:`verdict` about a plan's ranks. Return None if the plan has only one process that trains or
    serves.

    Args:
        plan: The job's plan.
        known: The facts about the ranks, by host and process.
    """
    if not is_cluster(plan):
        return None
    ranks = [known.get((process.host, process.name)) or RankEvidence() for process in plan.ranks]
    return verdict(plan.strategy, ranks)


def failure(text: str, host: str) -> Failure:
    """Return the failure of a job that was not distributed and has the option ``on_undistributed="fail"``.

    Args:
        text: The :func:`verdict`.
        host: The name of the host that reports the failure.
    """
    return Failure(
        cause=Cause.UNSOUND,
        message=f"{text} The job fails because RunOptions(on_undistributed='fail') is set.",
        host=host,
        hints=("docs/in-the-script.md shows what a script does to be distributed.",),
    )
