"""What a job may ask of Ray: ``RunOptions(backend_options={…})``."""

from __future__ import annotations

import dataclasses
import ipaddress
import json
from collections.abc import Mapping
from typing import Any

from container.contract.names import shown, unknown
from estimators.backends.hosts.remote import SILENCE_S
from estimators.job.errors import ConfigurationError

#: Ray's ways to place hosts on nodes; the first is ours where nobody says.
STRATEGIES = ("STRICT_SPREAD", "SPREAD", "PACK", "STRICT_PACK")
#: Resources that Ray's actors do not take.
_NOT_OURS = ("object_store_memory",)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RayOptions:
    """Options of the backend.

    Attributes:
        address: The cluster: ``host:port``, ``ray://host:port``, ``auto`` or ``local``; None: ``$RAY_ADDRESS``, else
            the one that runs on this machine, else one that is started here.
        strategy: How hosts are placed on nodes; None: each on a node of its own, where the cluster has several.
        resources_per_host: What each host gets; None: a core for each of its processes.
        accelerator_type: The accelerator that its node must have, as Ray calls it.
        labels: Labels that its node must have, as Ray's label selectors.
        placement_group: The placement group, by its id, whose bundles are the hosts; None: one of the job's own.
        follow_nodes: Whether an elastic job has a host at every node that has room, up to ``max_hosts``; else as many
            as it is told to.
        runtime_env: Ray's ``runtime_env`` of the hosts.
        python: The interpreter on the nodes; None: that of Ray's workers.
        caller_address: Where the nodes reach this machine; None: where Ray reaches it.
        silence: After how many seconds without a sign of life a host is lost.
    """

    address: str | None = None
    strategy: str | None = None
    resources_per_host: Mapping[str, float] | None = None
    accelerator_type: str | None = None
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    placement_group: str | None = None
    follow_nodes: bool = True
    runtime_env: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    python: str | None = None
    caller_address: str | None = None
    silence: float = SILENCE_S

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> RayOptions:
        """Read the options.

        Raises:
            ConfigurationError: one of them is not known, or of another type.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        values: dict[str, Any] = {}
        for name, value in given.items():
            if name not in known:
                raise ConfigurationError(unknown("option of instance_type 'ray'", name, known))
            if value is not None:
                values[name] = _READERS.get(name, _text)(name, value)
        return cls(**values)

    def bundle(self, processes: int) -> dict[str, float]:
        """Return what a host of so many processes asks of Ray."""
        if self.resources_per_host is not None:
            bundle = {name: float(amount) for name, amount in self.resources_per_host.items()}
        else:
            bundle = {"CPU": float(processes)}
        if self.accelerator_type is not None:
            bundle[f"accelerator_type:{self.accelerator_type}"] = 0.001  # what Ray's own accelerator_type= asks for
        return bundle


def _named(name: str) -> str:
    return f"backend_options[{name!r}]"


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value or "\n" in value:
        raise ConfigurationError(f"{_named(name)} must be a string; got {shown(value)}.")
    return value


def _strategy(name: str, value: Any) -> str:
    if value not in STRATEGIES:
        raise ConfigurationError(unknown(f"{_named(name)} (a strategy of Ray's placement groups)", value, STRATEGIES))
    return str(value)


def _resources(name: str, value: Any) -> dict[str, float]:
    if not isinstance(value, Mapping) or not value:
        raise ConfigurationError(
            f"{_named(name)} must be resources and their amounts, {{'CPU': 8, 'GPU': 1}} say; got {shown(value)}."
        )
    for resource, amount in value.items():
        number = isinstance(amount, int | float) and not isinstance(amount, bool)
        if not isinstance(resource, str) or not resource or not number or not 0 <= amount < float("inf"):
            raise ConfigurationError(f"{_named(name)}: {shown(resource)} must have an amount; got {shown(amount)}.")
        if resource in _NOT_OURS:
            raise ConfigurationError(f"{_named(name)}: Ray gives {resource!r} to nobody but itself; leave it out.")
        if amount > 1 and amount != int(amount):
            raise ConfigurationError(f"{_named(name)}: Ray gives whole {resource!r} from 1 on; got {shown(amount)}.")
    if not any(value.values()):
        raise ConfigurationError(f"{_named(name)} asks for nothing; give it an amount of at least one resource.")
    return dict(value)


def _labels(name: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(word, str) for item in value.items() for word in item):
        raise ConfigurationError(
            f"{_named(name)} must be labels and their values, {{'ray.io/market-type': 'spot'}} say; got {shown(value)}."
        )
    return dict(value)


def _group(name: str, value: Any) -> str:
    text = _text(name, value)
    try:
        bytes.fromhex(text)
    except ValueError:
        raise ConfigurationError(
            f"{_named(name)} must be the id of a placement group, group.id.hex(); got {shown(value)}."
        ) from None
    return text


def _runtime_env(name: str, value: Any) -> dict[str, Any]:
    try:
        if not isinstance(value, Mapping):
            raise TypeError
        json.dumps(dict(value))
    except (TypeError, ValueError):
        raise ConfigurationError(
            f"{_named(name)} must be a dict of plain values, {{'pip': ['pandas']}} say; got {shown(value)}."
        ) from None
    return dict(value)


def _python(name: str, value: Any) -> str:
    if not _text(name, value).startswith("/"):
        raise ConfigurationError(
            f"{_named(name)} must be an interpreter's absolute path on the nodes; got {shown(value)}."
        )
    return str(value)


def _ip(name: str, value: Any) -> str:
    try:
        return str(ipaddress.IPv4Address(value))
    except ValueError:
        raise ConfigurationError(f"{_named(name)} must be an IPv4 address; got {shown(value)}.") from None


def _seconds(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigurationError(f"{_named(name)} must be seconds, more than 0; got {shown(value)}.")
    return float(value)


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{_named(name)} must be True or False; got {shown(value)}.")
    return value


_READERS = {
    "follow_nodes": _flag,
    "strategy": _strategy,
    "resources_per_host": _resources,
    "labels": _labels,
    "placement_group": _group,
    "runtime_env": _runtime_env,
    "python": _python,
    "caller_address": _ip,
    "silence": _seconds,
}
