"""SageMaker's instance types: what each of them has, and what it costs.

Source: AWS's public list of SageMaker ML instance types and EC2's of accelerated instances. vCPUs follow the size
(``2xlarge`` is 8) but for a few old families. Networks and devices are EC2's published ones. Prices are of us-east-1,
and change: :func:`price_source` says where each is from; ``Result.cost(per_hour=…)`` and ``compare(prices=…)``
take your own.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping

from estimators.job.fleets import OWN_TYPES

_SIZE = re.compile(r"(?:metal-)?(\d*)xlarge$")

#: Sizes that do not follow the rule of four vCPUs per ``xlarge``.
_VCPUS = {"ml.c4.8xlarge": 36, "ml.g4dn.metal": 96, "ml.g5g.metal": 64}
_SMALL_SIZES = {"medium": 2, "large": 2}

#: First letters of the families with GPUs.
_ACCELERATED = ("g", "p")

#: Family -> size -> GPUs.
_GPUS: Mapping[str, Mapping[str, int]] = {
    "p2": {"xlarge": 1, "8xlarge": 8, "16xlarge": 16},
    "p3": {"2xlarge": 1, "8xlarge": 4, "16xlarge": 8},
    "p3dn": {"24xlarge": 8},
    "p4d": {"24xlarge": 8},
    "p4de": {"24xlarge": 8},
    "p5": {"4xlarge": 1, "48xlarge": 8},
    "p5e": {"48xlarge": 8},
    "p5en": {"48xlarge": 8},
    "p6-b200": {"48xlarge": 8},
    "p6-b300": {"48xlarge": 8},
    "p6e-gb200": {"36xlarge": 4},
    "g4dn": {"xlarge": 1, "2xlarge": 1, "4xlarge": 1, "8xlarge": 1, "12xlarge": 4, "16xlarge": 1, "metal": 8},
    "g5": {"xlarge": 1, "2xlarge": 1, "4xlarge": 1, "8xlarge": 1, "12xlarge": 4, "16xlarge": 1, "24xlarge": 4,
           "48xlarge": 8},
    "g6": {"xlarge": 1, "2xlarge": 1, "4xlarge": 1, "8xlarge": 1, "12xlarge": 4, "16xlarge": 1, "24xlarge": 4,
           "48xlarge": 8},
    "g6e": {"xlarge": 1, "2xlarge": 1, "4xlarge": 1, "8xlarge": 1, "12xlarge": 4, "16xlarge": 1, "24xlarge": 4,
            "48xlarge": 8},
    "g7e": {"2xlarge": 1, "4xlarge": 1, "8xlarge": 1, "12xlarge": 2, "24xlarge": 4, "48xlarge": 8},
}  # fmt: skip

#: Family -> a device, its memory in GB.
_DEVICES: Mapping[str, tuple[str, float]] = {
    "p2": ("K80", 12), "p3": ("V100", 16), "p3dn": ("V100", 32), "p4d": ("A100", 40), "p4de": ("A100", 80),
    "p5": ("H100", 80), "p5e": ("H200", 141), "p5en": ("H200", 141), "p6-b200": ("B200", 180),
    "g4dn": ("T4", 16), "g5": ("A10G", 24), "g6": ("L4", 24), "g6e": ("L40S", 48),
}  # fmt: skip

#: What the on-demand prices below are.
PRICES = "SageMaker on demand, us-east-1"
_PAGE = "aws.amazon.com/sagemaker/pricing as copied in goerlitz/nlp-classification, commit 06c5684"
_WIKI = "JHUAPL-DTC-TA2/wiki, docs/sagemaker_instances.md, commit 2b48144"
#: Types (or beginnings of their names) -> where their on-demand price was read.
_PRICE_SOURCES: Mapping[str, str] = {
    "ml.p3.": _PAGE, "ml.p3dn.": _PAGE, "ml.g4dn.": _PAGE, "ml.m5.large": _WIKI, "ml.m5.2xlarge": _WIKI,
    "ml.c5.xlarge": _WIKI, "ml.c5.2xlarge": _WIKI, "ml.c5.9xlarge": _WIKI, "ml.g5.4xlarge": _WIKI,
}  # fmt: skip
#: Of the other prices no source that could be read says more.
_UNVERIFIED = "from memory, as of 2024, not verified"
#: Where the spot prices are from.
SPOT_PRICES = "EC2 spot, the cheapest zone of us-east-1, as in skypilot-catalog's v8/aws/vms.csv, commit 00148f2"

#: Type -> network in Gbit/s ("up to" taken at its word), SageMaker's on-demand price in US dollars per hour, and what
#: EC2 asked for spot capacity of the same type; None where no published figure was at hand.
_OFFERS: Mapping[str, tuple[float | None, float | None, float | None]] = {
    "ml.m5.large": (10, 0.115, None), "ml.m5.xlarge": (10, 0.23, None), "ml.m5.2xlarge": (10, 0.461, None),
    "ml.m5.4xlarge": (10, 0.922, None), "ml.m5.12xlarge": (12, 2.765, None), "ml.m5.24xlarge": (25, 5.53, None),
    "ml.c5.xlarge": (10, 0.204, None), "ml.c5.2xlarge": (10, 0.408, None), "ml.c5.4xlarge": (10, 0.816, None),
    "ml.c5.9xlarge": (12, 1.836, None), "ml.c5.18xlarge": (25, 3.672, None),
    "ml.p3.2xlarge": (10, 3.825, 0.3707), "ml.p3.8xlarge": (10, 14.688, 1.4129), "ml.p3.16xlarge": (25, 28.152, None),
    "ml.p3dn.24xlarge": (100, 35.894, 6.2567), "ml.p4d.24xlarge": (400, None, None),
    "ml.p4de.24xlarge": (400, None, 8.6505), "ml.p5.48xlarge": (3200, None, 17.6289),
    "ml.g4dn.xlarge": (25, 0.7364, None), "ml.g4dn.2xlarge": (25, 0.94, None), "ml.g4dn.4xlarge": (25, 1.505, None),
    "ml.g4dn.8xlarge": (50, 2.72, None), "ml.g4dn.12xlarge": (50, 4.89, None), "ml.g4dn.16xlarge": (50, 5.44, None),
    "ml.g5.xlarge": (10, 1.408, None), "ml.g5.2xlarge": (10, 1.515, None), "ml.g5.4xlarge": (25, 2.03, None),
    "ml.g5.8xlarge": (25, 3.06, None), "ml.g5.12xlarge": (40, 7.09, None), "ml.g5.16xlarge": (25, 5.12, None),
    "ml.g5.24xlarge": (50, 10.18, None), "ml.g5.48xlarge": (100, 20.36, None),
}  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceType:
    """What is known of an instance type.

    Attributes:
        name: ``ml.p3.8xlarge``.
        vcpus: Virtual processors, or None.
        gpus: Devices; 0 for none.
        device: What they are, or None.
        device_memory_gb: Memory of each in GB, or None.
        network_gbps: The network in Gbit/s, or None.
        on_demand: US dollars per hour, or None.
        spot: What EC2 asked for spot capacity, US dollars per hour, or None.
    """

    name: str
    vcpus: int | None
    gpus: int
    device: str | None
    device_memory_gb: float | None
    network_gbps: float | None
    on_demand: float | None
    spot: float | None

    @property
    def slots(self) -> int | None:
        """How many ranks it takes."""
        return slots(self.name)


def describe(instance_type: str) -> InstanceType | None:
    """Return what is known of an ``ml.*`` type; None for others."""
    if not instance_type.startswith("ml."):
        return None
    device, memory = _DEVICES.get(_split(instance_type)[0], (None, None))
    network, on_demand, spot = _OFFERS.get(instance_type, (None, None, None))
    return InstanceType(
        name=instance_type,
        vcpus=vcpus(instance_type),
        gpus=gpus(instance_type),
        device=device,
        device_memory_gb=memory,
        network_gbps=network,
        on_demand=on_demand,
        spot=spot,
    )


def price_source(instance_type: str) -> str:
    """Where a type's on-demand price was read, or that it is not verified."""
    found = (source for start, source in _PRICE_SOURCES.items() if instance_type.startswith(start))
    return f"{PRICES}: {next(found, _UNVERIFIED)}"


def offered() -> tuple[str, ...]:
    """Return the types of which at least the network is known."""
    return tuple(_OFFERS)


def gpus(instance_type: str) -> int:
    """GPUs of an ``ml.*`` type; 0 for one without."""
    family, size = _split(instance_type)
    return _GPUS.get(family, {}).get(size, 0)


def vcpus(instance_type: str) -> int | None:
    """vCPUs of an ``ml.*`` type; None when its name does not tell."""
    if instance_type in _VCPUS:
        return _VCPUS[instance_type]
    size = _split(instance_type)[1]
    if size in _SMALL_SIZES:
        return _SMALL_SIZES[size]
    match = _SIZE.fullmatch(size)
    return 4 * int(match.group(1) or 1) if match else None


def slots(instance_type: str) -> int | None:
    """How many ranks an ``ml.*`` type takes: its GPUs if it has any, else its vCPUs; None when that is not known."""
    if _split(instance_type)[0][:1] in _ACCELERATED:
        return gpus(instance_type) or None  # a newer type than the table
    return vcpus(instance_type)


def near(instance_type: str, known: Iterable[str]) -> list[str]:
    """Return the types to show beside an unknown one: the local ones, and those of the same family."""
    family = _split(instance_type)[0]
    relatives = [name for name in known if name.startswith("ml.") and _split(name)[0] == family]
    return [*OWN_TYPES, *relatives]


def _split(instance_type: str) -> tuple[str, str]:
    """``("p3", "2xlarge")`` for ``ml.p3.2xlarge``."""
    parts = instance_type.split(".")
    return (parts[1], parts[2]) if len(parts) == 3 else ("", parts[-1])
