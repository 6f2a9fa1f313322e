"""Measure the use of the host's NVIDIA GPUs with the driver's library (NVML). Imported only if there are GPUs."""

from __future__ import annotations

import ctypes
import threading
from typing import Any


class _Utilization(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _NvmlMemory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class GpuReader:
    """Read the use of the GPUs in a separate thread, because the driver may take a second to answer."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}
        self._asked = threading.Event()
        threading.Thread(target=self._run, name="gpus", daemon=True).start()

    def latest(self) -> dict[str, float]:
        """Return the latest values, and request the next measurement."""
        self._asked.set()
        return self._values

    def _run(self) -> None:
        try:
            library = ctypes.CDLL("libnvidia-ml.so.1")
            devices = _devices(library)
            while devices:
                self._values = {name: value for place, one in enumerate(devices)
                                for name, value in _gpu(library, place, one).items()}  # fmt: skip
                self._asked.wait()
                self._asked.clear()
        except (OSError, AttributeError):
            self._values = {}  # the library does not exist, or is too old


def _devices(library: Any) -> list[ctypes.c_void_p]:
    count = ctypes.c_uint()
    if library.nvmlInit_v2() or library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    devices = []
    for place in range(count.value):
        device = ctypes.c_void_p()
        if not library.nvmlDeviceGetHandleByIndex_v2(place, ctypes.byref(device)):
            devices.append(device)
    return devices


def _gpu(library: Any, place: int, device: ctypes.c_void_p) -> dict[str, float]:
    values: dict[str, float] = {}
    rates, memory = _Utilization(), _NvmlMemory()
    if not library.nvmlDeviceGetUtilizationRates(device, ctypes.byref(rates)):
        values[f"gpu{place}_percent"] = rates.gpu
    if not library.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory)):
        values[f"gpu{place}_memory_bytes"] = memory.used
    return values
