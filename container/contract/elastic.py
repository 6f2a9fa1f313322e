"""The names of elastic workers, which say where they run. Pure."""

from __future__ import annotations


def worker_name(host: str, slot: int, number: int) -> str:
    """Return a worker's name: ``algo-2.0.1`` is the second worker in the first slot of a host."""
    return f"{host}.{slot}.{number}"


def split_worker(name: str) -> tuple[str, int, int]:
    """Split a worker's name into host, slot and number.

    Raises:
        ValueError: it is none.
    """
    host, slot, number = name.rsplit(".", 2)
    return host, int(slot), int(number)
