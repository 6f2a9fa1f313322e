"""Inject the faults that ``fit(faults=…)`` specifies into the job's ranks at certain training steps."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from container.contract import events, variables


class InjectedFaults:
    """The faults to inject into this job's ranks at certain steps.

    Args:
        environ: The environment variables. ``FLEETFIT_FAULTS`` describes the faults.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._orders: list[dict[str, Any]] = []
        text = environ.get(variables.FAULTS)
        if text:
            try:
                done = json.loads(environ.get(variables.FAULTS_DONE) or "[]")
                self._orders = [dict(order) for order in json.loads(text) if order["id"] not in done]
            except (KeyError, ValueError, TypeError):
                self._orders = []

    @property
    def pending(self) -> bool:
        """Return whether faults remain to be injected."""
        return bool(self._orders)

    def reached(self, step: int, *, rank: int, coordinates: bool = False) -> None:
        """Inject the faults that are due when this process has finished ``step`` steps.

        Each of these faults is reported to the job's supervisor process. If a fault sends a signal to this rank, this
        process sends the signal to itself. The supervisor injects all other faults.

        Args:
            step: Number of finished steps.
            rank: This process's rank.
            coordinates: Whether this process is the chief of parameter servers, which counts the steps of all ranks. If
                true, this process also reports the faults of other ranks.
        """
        for order in [order for order in self._orders if step >= order["step"]]:
            if order["rank"] != rank and not coordinates:
                continue
            self._orders.remove(order)
            events.emit("fault_step", id=order["id"], step=step)
            if order["rank"] == rank and "signal" in order:
                os.kill(os.getpid(), order["signal"])
        if not coordinates:
            # A fault for another rank is meant for that rank's current process, not for a process that gets the rank
            # later.
            self.passed(step)

    def passed(self, step: int) -> None:
        """Drop the faults of step ``step`` and of earlier steps, so that this process does not inject these faults.

        Call this method for steps that this process has finished, or that other processes had finished before this
        process joined.
        """
        self._orders = [order for order in self._orders if order["step"] > step]
