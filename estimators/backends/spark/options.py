"""What a job may ask of Spark: ``RunOptions(backend_options={…})``."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Mapping
from typing import Any

from container.contract.names import shown
from estimators.backends.hosts.remote import SILENCE_S
from estimators.backends.option_rules import above_0, interpreter, option, read, refuse, text
from estimators.job.errors import ConfigurationError

#: What Spark itself blackens where it shows its configuration.
_SECRET = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
#: What would have executors come and go.
DYNAMIC = "spark.dynamicAllocation.enabled"


def _conf(where: str, value: Any) -> dict[str, str]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
        raise refuse(where, "Spark's settings by name, {'spark.executor.memory': '8g'} say", value)
    made = {}
    for name, item in value.items():
        if not isinstance(item, str | int | float):
            raise ConfigurationError(f"{where}: {name!r} must be a string, a number or a bool; got {shown(item)}.")
        if _SECRET.search(name):
            raise ConfigurationError(
                f"{where}: {name!r} would stand in the job's record; put it into Spark's own spark-defaults.conf."
            )
        made[name] = str(item).lower() if isinstance(item, bool) else str(item)
    if made.get(DYNAMIC, "").lower() == "true":
        raise ConfigurationError(f"{where}: {dynamic_refusal()}")
    return made


def dynamic_refusal() -> str:
    """Return why executors that come and go by themselves cannot be hosts."""
    return (
        f"{DYNAMIC} is true, with which Spark has no barrier stages, and takes executors for idle as it likes; "
        "set it to false, and spark.executor.instances to the number of hosts."
    )


def _resources(where: str, value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping) or not value:
        raise refuse(where, "resources and their amounts, {'CPU': 4, 'GPU': 1} say", value)
    for name, amount in value.items():
        whole = isinstance(amount, int) and not isinstance(amount, bool)
        if not isinstance(name, str) or not name or not whole or amount < 1:
            raise ConfigurationError(f"{where}: {shown(name)} must have a whole amount from 1 on; got {shown(amount)}.")
    return dict(value)


def _ip(where: str, value: Any) -> str:
    try:
        return str(ipaddress.IPv4Address(value))
    except ValueError:
        raise refuse(where, "an IPv4 address", value) from None


@dataclasses.dataclass(frozen=True, kw_only=True)
class SparkOptions:
    """Options of the backend.

    Attributes:
        master: The cluster on which a session is made for the job, by Spark's name (``spark://host:7077``, ``yarn``,
            ``local-cluster[3,1,1024]``, ``local[4]``); None: the session of the process that calls ``fit()``.
        conf: Settings of that session.
        resources_per_host: What each host has of its executor; None: all of it.
        python: The interpreter of the hosts; None: that of Spark's Python workers.
        caller_address: Where the executors reach this machine; None: where they reach Spark's driver.
        silence: After how many seconds without a sign of life a host is lost.
    """

    master: str | None = option(text(r"\S+", "no master of Spark's, such as 'spark://host:7077'"))
    conf: Mapping[str, str] = dataclasses.field(default_factory=dict, metadata={"rule": _conf})
    resources_per_host: Mapping[str, int] | None = option(_resources)
    python: str | None = option(interpreter)
    caller_address: str | None = option(_ip)
    silence: float = option(above_0("seconds, more than 0"), SILENCE_S)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> SparkOptions:
        """Read the options.

        Raises:
            ConfigurationError: one of them is not known, or of another type.
        """
        made: SparkOptions = read(cls, given, what="option of instance_type 'spark'")
        if made.conf and made.master is None:
            raise ConfigurationError(
                "backend_options: 'conf' is of a session that is made for the job; name its 'master', too, or give the "
                "settings to your own session."
            )
        return made

    def cpus(self) -> int | None:
        """Return a host's cores; None for all of its executor's."""
        return None if self.resources_per_host is None else self.resources_per_host.get("CPU")

    def amounts(self) -> dict[str, int] | None:
        """Return what a host has beside cores, by Spark's names; None for all that its executor has."""
        if self.resources_per_host is None:
            return None
        return {
            "gpu" if name == "GPU" else name: amount
            for name, amount in self.resources_per_host.items()
            if name != "CPU"
        }
