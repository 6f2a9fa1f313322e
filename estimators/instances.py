"""Instance types: the local ones, and what SageMaker's have.

Source: AWS's public list of SageMaker ML instance types and EC2's of accelerated instances. vCPUs follow the size
(``2xlarge`` is 8) but for a few old families.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

#: Types that fleetfit runs itself: processes on this machine, containers on it, and the fake for users' own tests.
LOCAL_TYPES = ("local_process", "local", "local_gpu", "local_fake")

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


def is_local(instance_type: str | None) -> bool:
    """Whether fleetfit runs the type itself, rather than SageMaker."""
    return instance_type in LOCAL_TYPES


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
    """The types to show beside an unknown one: the local ones, and those of the same family."""
    family = _split(instance_type)[0]
    relatives = [name for name in known if name.startswith("ml.") and _split(name)[0] == family]
    return [*(name for name in LOCAL_TYPES), *relatives]


def _split(instance_type: str) -> tuple[str, str]:
    """``("p3", "2xlarge")`` for ``ml.p3.2xlarge``."""
    parts = instance_type.split(".")
    return (parts[1], parts[2]) if len(parts) == 3 else ("", parts[-1])
