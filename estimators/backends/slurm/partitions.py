"""Find out whether any of the partitions that a job names can grant the job's request."""

from __future__ import annotations

from collections.abc import Mapping

from container.contract.names import unknown
from estimators.backends.slurm.options import SlurmOptions, minutes

#: The fields that ``scontrol show partition`` prints for each partition, by name.
Partitions = Mapping[str, Mapping[str, str]]


def refusal(given: SlurmOptions, hosts: int, partitions: Partitions) -> str | None:
    """Return why the job's partitions are unsuitable: one of them does not exist, or none can grant the job's request.

    Return None if all of them exist and at least one of them can grant the request.

    If the job names no partition, it uses the cluster's default partition.

    Args:
        given: The options of the Slurm backend.
        hosts: The number of the job's hosts. Each host needs a node.
        partitions: The fields of the cluster's partitions.
    """
    names = given.partition.split(",") if given.partition is not None else _default(partitions)
    if not names:
        known = ", ".join(sorted(partitions)) or "none"
        return (
            "this cluster has no default partition. Name one of these partitions with backend_options={'partition': "
            f"…}}: {known}."
        )
    for name in names:
        if name not in partitions:
            return unknown("partition of Slurm", name, sorted(partitions))
    reasons = [_unsuitable(given, hosts, name, partitions[name]) for name in names]
    return None if None in reasons else " ".join(filter(None, reasons))


def _default(partitions: Partitions) -> list[str]:
    return [name for name, fields in partitions.items() if fields.get("Default") == "YES"]


def _unsuitable(given: SlurmOptions, hosts: int, name: str, fields: Mapping[str, str]) -> str | None:
    if fields.get("State", "UP") != "UP":
        return f"partition {name!r} accepts no jobs now (it is {fields['State']}). Name another partition, or wait."
    limits = [int(fields[field]) for field in ("TotalNodes", "MaxNodes") if fields.get(field, "").isdigit()]
    if limits and hosts > min(limits):
        return (
            f"instance_count={hosts}, but partition {name!r} gives a job at most {min(limits)} nodes. Ask for fewer "
            "nodes."
        )
    asked = minutes(given.time) if given.time is not None else None
    most = minutes(fields.get("MaxTime", "UNLIMITED"))
    if asked is not None and most is not None and asked > most:
        return f"time={given.time!r}, but partition {name!r} allows at most {fields['MaxTime']}. Ask for less time."
    return None
