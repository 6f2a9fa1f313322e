"""Build and split the names of elastic workers. A name contains the worker's host, slot and number."""

from __future__ import annotations


def worker_name(host: str, slot: int, number: int) -> str:
    """Return the name of a worker. For example, ``algo-2.0.1`` is the second worker that was started in the first slot
    of ``algo-2``.
    """
    return f"{host}.{slot}.{number}"


def split_worker(name: str) -> tuple[str, int, int]:
    """Split a worker's name into host, slot and number.

    Raises:
        ValueError: the slot or the number is missing, or is not a whole number.
    """
    host, slot, number = name.rsplit(".", 2)
    return host, int(slot), int(number)
