"""Read facts of this machine from the kernel's files, without starting a program: cores, memory, GPUs and limits."""

from __future__ import annotations

import math
import os
import re
import resource
from collections.abc import Mapping
from pathlib import Path

from container.contract.frozen import dataclass
from container.system.files import names_in

_CGROUP_ROOT = Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True)
class MachineFacts:
    """The resources of this machine that this process may use, given its affinity, control groups and limits.

    Attributes:
        cores: The number of whole cores that may be used: the size of the affinity mask, or the control group's quota
            (rounded up) if the quota is smaller.
        cores_of_machine: The number of cores that the kernel knows.
        cpu_quota: The control group's quota in cores. None if the control group has no quota.
        memory_bytes: The memory that may be used, in bytes: the machine's memory, or the control group's limit.
        memory_available_bytes: The part of ``memory_bytes`` that is free or can be freed.
        open_files_hard_limit: The hard limit on descriptors (``ulimit -Hn``). None if unlimited.
        processes_limit: The limit on processes and threads: the lower of the user's soft limit (``ulimit -u``) and the
            control group's ``pids.max``. None if unlimited.
        gpus: The names of the visible GPUs.
    """

    cores: int
    cores_of_machine: int
    cpu_quota: float | None = None
    memory_bytes: int
    memory_available_bytes: int
    open_files_hard_limit: int | None = None
    processes_limit: int | None = None
    gpus: tuple[str, ...] = ()


def facts() -> MachineFacts:
    """Return the current facts of this machine. The call takes some milliseconds."""
    affinity = len(os.sched_getaffinity(0))
    groups = _control_groups()
    quota = _cpu_quota(groups)
    memory, available = _memory(groups)
    return MachineFacts(
        cores=_whole(affinity, quota),
        cores_of_machine=os.cpu_count() or affinity,
        cpu_quota=quota,
        memory_bytes=memory,
        memory_available_bytes=available,
        open_files_hard_limit=_limit(resource.getrlimit(resource.RLIMIT_NOFILE)[1]),
        processes_limit=_process_limit(groups),
        gpus=gpus(),
    )


def cores() -> int:
    """Return the number of whole cores that this process may use. See :attr:`MachineFacts.cores`."""
    return _whole(len(os.sched_getaffinity(0)), _cpu_quota(_control_groups()))


def _whole(affinity: int, quota: float | None) -> int:
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


def free_bytes(path: Path) -> int | None:
    """Return the number of bytes that this user may still write on a disk. Return None if the number is unknown.

    Args:
        path: A path on the disk. If the path does not exist, its nearest existing parent determines the disk.
    """
    for candidate in (path, *path.parents):
        try:
            disk = os.statvfs(candidate)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        return disk.f_bavail * disk.f_frsize
    return None


def gpus(environment: Mapping[str, str] = os.environ, proc: Path = Path("/proc/driver/nvidia/gpus")) -> tuple[str, ...]:
    """Return the names of the NVIDIA GPUs that a program with the given environment variables sees. No driver library
    is loaded.

    Args:
        environment: The program's environment variables. ``CUDA_VISIBLE_DEVICES`` hides devices.
        proc: The folder in which the driver lists the GPUs.
    """
    names: list[str] = []
    if proc.is_dir():
        for entry in sorted(proc.iterdir()):
            match = re.search(r"^Model:\s*(.+)$", _read(entry / "information"), re.MULTILINE)
            names.append(match[1].strip() if match else "NVIDIA GPU")
    # A container gets some of the machine's devices, while the driver lists all of them.
    nodes = [name for name in names_in(Path("/dev")) if re.fullmatch(r"nvidia\d+", name)]
    if proc == Path("/proc/driver/nvidia/gpus"):
        names = names[: len(nodes)]
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        chosen = [part for part in visible.split(",") if part.strip() not in ("", "-1", "NoDevFiles")]
        names = names[: len(chosen)]
    return tuple(names)


def cpu_model() -> str:
    """Return the processor's name from ``/proc/cpuinfo``. Return the architecture's name if the file does not contain
    the processor's name.
    """
    match = re.search(r"^model name\s*:\s*(.+)$", _read(Path("/proc/cpuinfo")), re.MULTILINE)
    return match[1].strip() if match else os.uname().machine


def format_bytes(number: float) -> str:
    """Format a size as ``512 MB`` or ``3.4 GB``.

    The units are powers of 1000, as for the sizes of disks and in ``df -H``.
    """
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= size:
            scaled = number / size
            return f"{scaled:.0f} {unit}" if scaled >= 100 else f"{scaled:.1f} {unit}"
    return f"{number:.0f} B"


def _control_groups() -> tuple[Path, ...]:
    """Return the folders of this process's control groups, and of the parents of these groups.

    Included are the groups of version 2, and version 1's groups for cpu, memory and pids.
    """
    folders: list[Path] = []
    for line in _read(Path("/proc/self/cgroup")).splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        bases = [_CGROUP_ROOT] if not controllers else [_CGROUP_ROOT / name for name in controllers.split(",")]
        relative = Path(path.lstrip("/"))
        for base in bases:
            # In a container the path is the host's, while the container's own group is mounted at the root.
            folders += [base / part for part in (relative, *relative.parents)]
            folders.append(base)
    return tuple(folder for folder in dict.fromkeys(folders) if folder.is_dir())


def _cpu_quota(groups: tuple[Path, ...]) -> float | None:
    quotas: list[float] = []
    for group in groups:
        words = _read(group / "cpu.max").split()
        if len(words) == 2 and words[0].isdigit():
            quotas.append(int(words[0]) / int(words[1]))
        v1, period = _number(group / "cpu.cfs_quota_us"), _number(group / "cpu.cfs_period_us")
        if v1 is not None and v1 > 0 and period:
            quotas.append(v1 / period)
    return min(quotas, default=None)


def _memory(groups: tuple[Path, ...]) -> tuple[int, int]:
    """Return the usable memory and the available memory, in bytes."""
    table = dict(re.findall(r"^(\w+):\s+(\d+) kB$", _read(Path("/proc/meminfo")), re.MULTILINE))
    total = int(table.get("MemTotal", 0)) * 1024
    available = int(table.get("MemAvailable", 0)) * 1024
    for group in groups:
        for limit_name, used_name in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            limit = _number(group / limit_name)
            if limit is None or limit >= total:  # v1 says "no limit" with a huge number
                continue
            used = _number(group / used_name) or 0
            cached = re.search(
                r"^(?:inactive_file|total_inactive_file) (\d+)$", _read(group / "memory.stat"), re.MULTILINE
            )
            used -= min(used, int(cached[1]) if cached else 0)
            total, available = limit, min(available, max(0, limit - used))
    return total, available


def _process_limit(groups: tuple[Path, ...]) -> int | None:
    """Return the lowest limit on processes and threads. Return None if there is no limit.

    The limit may be the user's or a control group's.
    """
    found = [limit for group in groups if (limit := _number(group / "pids.max")) is not None]
    soft = _limit(resource.getrlimit(resource.RLIMIT_NPROC)[0])
    if soft is not None and os.geteuid() != 0:  # the limit does not apply to root
        found.append(soft)
    return min(found, default=None)


def _limit(value: int) -> int | None:
    return None if value == resource.RLIM_INFINITY else value


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _read(path).strip()
    return int(text) if text.lstrip("-").isdigit() else None
