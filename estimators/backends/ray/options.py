"""Define the options of a job on Ray: ``RunOptions(backend_options={…})``."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, ClassVar

from container.contract.frozen import dataclass
from container.contract.names import shown
from container.contract.rules import boolean, one_of, option, refuse, text
from estimators.backends.hosts.arriving import ArrivingOptions
from estimators.job.errors import ConfigurationError

#: The strategies of Ray's placement groups; the first is the default.
STRATEGIES = ("STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK")
_LINE = text(r".+", "not a single line of text")
#: Resources that Ray's actors cannot request.
_NOT_OURS = ("object_store_memory",)


def _strategy(where: str, value: Any) -> str:
    said: str = one_of(*STRATEGIES)(f"{where} (a strategy of Ray's placement groups)", value)
    return said


def _resources(where: str, value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping) or not value:
        raise ConfigurationError(
            f"{where} must be a dict of resources and amounts such as {{'CPU': 8, 'GPU': 1}}; got {shown(value)}."
        )
    for resource, amount in value.items():
        number = isinstance(amount, int | float) and not isinstance(amount, bool)
        if not isinstance(resource, str) or not resource or not number or not 0 <= amount < float("inf"):
            raise ConfigurationError(f"{where}: {shown(resource)} must have an amount; got {shown(amount)}.")
        if resource in _NOT_OURS:
            raise ConfigurationError(f"{where}: Ray reserves {resource!r} for itself. Leave it out.")
        if amount > 1 and amount != int(amount):
            raise ConfigurationError(f"{where}: an amount of {resource!r} above 1 must be whole; got {shown(amount)}.")
    if not any(value.values()):
        raise ConfigurationError(f"{where} asks for nothing. Give an amount of at least one resource.")
    return dict(value)


def _labels(where: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(word, str) for item in value.items() for word in item):
        raise refuse(where, "a dict of labels and values such as {'ray.io/market-type': 'spot'}", value)
    return dict(value)


def _group(where: str, value: Any) -> str:
    said: str = text()(where, value)
    try:
        bytes.fromhex(said)
    except ValueError:
        raise refuse(where, "the id of a placement group, group.id.hex()", value) from None
    return said


def _runtime_env(where: str, value: Any) -> dict[str, Any]:
    try:
        if not isinstance(value, Mapping):
            raise TypeError
        json.dumps(dict(value))
    except (TypeError, ValueError):
        raise refuse(where, "a dict of plain values such as {'pip': ['pandas']}", value) from None
    return dict(value)


@dataclass(frozen=True, kw_only=True)
class RayOptions(ArrivingOptions):
    """The options of the Ray backend.

    Attributes:
        address: The cluster's address: ``host:port``, ``ray://host:port``, ``auto`` or ``local``. If None, the job uses
            the cluster that the caller of ``fit()`` has joined (not through ``ray://``). Otherwise, the address is
            ``$RAY_ADDRESS``. If that variable is not set, the job uses the cluster that runs on this machine. If no
            cluster runs, a new one is started on this machine.
        strategy: The strategy of the placement group, which decides on which nodes the hosts are. If None, each host is
            on a node of its own. In a cluster that was started for this job, however, all hosts are on this machine.
        resources_per_host: The resources of each host. If None, a host has one core for each of its processes.
        accelerator_type: Ray's name of the accelerator that a host's node must have.
        labels: The labels that a host's node must have, written as Ray's label selectors.
        placement_group: The id of a placement group with one bundle for each host. If None, the job uses the placement
            group that its caller runs in. If the caller runs in none, the job creates a placement group.
        follow_nodes: Whether an elastic job has a host on every node with enough free resources, up to ``max_hosts``.
            If False, the job has the number of hosts that was requested.
        runtime_env: Ray's ``runtime_env`` for the actors of the hosts.
    """

    instance_type: ClassVar[str] = "ray"
    address: str | None = option(_LINE)
    strategy: str | None = option(_strategy)
    resources_per_host: Mapping[str, float] | None = option(_resources)
    accelerator_type: str | None = option(_LINE)
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict, metadata={"rule": _labels})
    placement_group: str | None = option(_group)
    follow_nodes: bool = option(boolean, True)
    runtime_env: Mapping[str, Any] = dataclasses.field(default_factory=dict, metadata={"rule": _runtime_env})

    def bundle(self, processes: int) -> dict[str, float]:
        """Return the resources to request for a host with ``processes`` processes."""
        if self.resources_per_host is not None:
            bundle = {name: float(amount) for name, amount in self.resources_per_host.items()}
        else:
            bundle = {"CPU": float(processes)}
        if self.accelerator_type is not None:
            bundle[f"accelerator_type:{self.accelerator_type}"] = 0.001  # as Ray's own accelerator_type=
        return bundle
