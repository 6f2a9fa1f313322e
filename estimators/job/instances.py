"""List the features and prices of SageMaker's instance types.

The sources are AWS's public lists of SageMaker's ML instance types and of EC2's accelerated instances. The number of
vCPUs follows from the size (``2xlarge`` is 8), except in a few old families. The network bandwidths and GPU models are
those that EC2 publishes. The prices are those of us-east-1, and they change. :func:`price_source` returns the source of
each price. ``Result.cost(per_hour=…)`` and ``compare(prices=…)`` accept prices of the user instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from container.contract.frozen import dataclass
from estimators.job.fleets import OWN_TYPES

_SIZE = re.compile(r"(?:metal-)?(\d*)xlarge$")

#: vCPUs of types that do not follow the rule of four per ``xlarge``.
_VCPUS = {"ml.c4.8xlarge": 36, "ml.g4dn.metal": 96, "ml.g5g.metal": 64}
_SMALL_SIZES = {"medium": 2, "large": 2}

#: First letters of the families with GPUs.
_ACCELERATED = ("g", "p")

#: The number of GPUs, by family and size of instance types.
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

#: The model of the GPU, by family of instance types.
_DEVICES: Mapping[str, str] = {
    "p2": "K80", "p3": "V100", "p3dn": "V100", "p4d": "A100", "p4de": "A100", "p5": "H100", "p5e": "H200",
    "p5en": "H200", "p6-b200": "B200", "g4dn": "T4", "g5": "A10G", "g6": "L4", "g6e": "L40S",
}  # fmt: skip

#: A description of the on-demand prices below.
PRICES = "SageMaker on demand, us-east-1"
_PAGE = "aws.amazon.com/sagemaker/pricing as copied in goerlitz/nlp-classification, commit 06c5684"
_WIKI = "JHUAPL-DTC-TA2/wiki, docs/sagemaker_instances.md, commit 2b48144"
#: The source of the on-demand price, by instance types or prefixes of instance types.
_PRICE_SOURCES: Mapping[str, str] = {
    "ml.p3.": _PAGE, "ml.p3dn.": _PAGE, "ml.g4dn.": _PAGE, "ml.m5.large": _WIKI, "ml.m5.2xlarge": _WIKI,
    "ml.c5.xlarge": _WIKI, "ml.c5.2xlarge": _WIKI, "ml.c5.9xlarge": _WIKI, "ml.g5.4xlarge": _WIKI,
}  # fmt: skip
#: The source of all other prices.
_UNVERIFIED = "from memory, as of 2024, not verified"

#: The offers by instance type. Each offer has the bandwidth of the network in Gbit/s (the maximum if AWS states "up
#: to"), SageMaker's on-demand price in US dollars per hour, and EC2's spot price for the same type. A number is None if
#: no published number is known. The spot prices are those of the cheapest zone of us-east-1, as in skypilot-catalog's
#: v8/aws/vms.csv, commit 00148f2.
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


@dataclass(frozen=True, kw_only=True)
class InstanceType:
    """The features and prices of an instance type.

    Attributes:
        name: The name of the instance type, such as ``ml.p3.8xlarge``.
        vcpus: The number of virtual processors. None if the number is unknown.
        gpus: The number of GPUs. 0 if the type has no GPU.
        device: The model of the GPUs. None if the model is unknown or the type has no GPU.
        network_gbps: The bandwidth of the network in Gbit/s. None if the bandwidth is unknown.
        on_demand: The on-demand price in US dollars per hour. None if the price is unknown.
        spot: EC2's spot price in US dollars per hour. None if the price is unknown.
    """

    name: str
    vcpus: int | None
    gpus: int
    device: str | None
    network_gbps: float | None
    on_demand: float | None
    spot: float | None

    @property
    def slots(self) -> int | None:
        """Return the number of ranks that a host of the type can run. Return None if the number is unknown."""
        return slots(self.name)


def describe(instance_type: str) -> InstanceType | None:
    """Return the features and prices of an ``ml.*`` type. Return None for other types."""
    if not instance_type.startswith("ml."):
        return None
    network, on_demand, spot = _OFFERS.get(instance_type, (None, None, None))
    return InstanceType(
        name=instance_type,
        vcpus=vcpus(instance_type),
        gpus=gpus(instance_type),
        device=_DEVICES.get(_split(instance_type)[0]),
        network_gbps=network,
        on_demand=on_demand,
        spot=spot,
    )


def price_source(instance_type: str) -> str:
    """Return the source of a type's on-demand price. If the price is not verified, the text says so."""
    found = (source for start, source in _PRICE_SOURCES.items() if instance_type.startswith(start))
    return f"{PRICES}: {next(found, _UNVERIFIED)}"


def offered() -> tuple[str, ...]:
    """Return the types for which at least the bandwidth of the network is known."""
    return tuple(_OFFERS)


def gpus(instance_type: str) -> int:
    """Return the number of GPUs of an ``ml.*`` type. Return 0 if the type has no GPU."""
    family, size = _split(instance_type)
    return _GPUS.get(family, {}).get(size, 0)


def vcpus(instance_type: str) -> int | None:
    """Return the number of vCPUs of an ``ml.*`` type.

    Return None if the number does not follow from the type's name.
    """
    if instance_type in _VCPUS:
        return _VCPUS[instance_type]
    size = _split(instance_type)[1]
    if size in _SMALL_SIZES:
        return _SMALL_SIZES[size]
    match = _SIZE.fullmatch(size)
    return 4 * int(match.group(1) or 1) if match else None


def slots(instance_type: str) -> int | None:
    """Return the number of ranks that an ``ml.*`` type can run.

    A type with GPUs can run one rank per GPU. Other types can run one rank per vCPU. Return None if the number is
    unknown.
    """
    if _split(instance_type)[0][:1] in _ACCELERATED:
        return gpus(instance_type) or None  # None: a type that is newer than the table
    return vcpus(instance_type)


def near(instance_type: str, known: Iterable[str]) -> list[str]:
    """Return the types to suggest for an unknown type: fleetfit's own types, and known types of the same family."""
    family = _split(instance_type)[0]
    relatives = [name for name in known if name.startswith("ml.") and _split(name)[0] == family]
    return [*OWN_TYPES, *relatives]


def _split(instance_type: str) -> tuple[str, str]:
    """Split a type into its family and size. The result for ``ml.p3.2xlarge`` is ``("p3", "2xlarge")``."""
    parts = instance_type.split(".")
    return (parts[1], parts[2]) if len(parts) == 3 else ("", parts[-1])
