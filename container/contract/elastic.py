"""The names of elastic workers, which say where they run. Pure."""

from __future__ import annotations


def worker_name(host: str, slot: int, number: int) -> str:
    """``algo-2.0.1``: the second worker that there has been in the first slot of a host."""
    return f"{host}.{slot}.{number}"


def split_worker(name: str) -> tuple[str, int, int]:
    """The host, slot and number of a worker's name.

    Raises:
        ValueError: it is none.
    """
    host, slot, number = name.rsplit(".", 2)
    return host, int(slot), int(number)
