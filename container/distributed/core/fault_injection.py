"""The faults that a job injects at training steps (``fit(faults=…)``), as its ranks see them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from container.contract import events, variables


class InjectedFaults:
    """The faults to inject, by step.

    Args:
        environ: The environment, in which the supervisor says it.
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
        """Whether anything is to happen yet."""
        return bool(self._orders)

    def reached(self, step: int, *, rank: int, coordinates: bool = False) -> None:
        """Inject the faults that are due after this step, which this process has finished.

        Args:
            step: How many steps are finished.
            rank: This process's.
            coordinates: Whether it alone sees the steps, and reports those of the others too.
        """
        for order in [order for order in self._orders if step >= order["step"]]:
            if order["rank"] != rank and not coordinates:
                continue
            self._orders.remove(order)
            events.emit("fault_step", id=order["id"], step=step)
            if order["rank"] == rank and "signal" in order:
                os.kill(os.getpid(), order["signal"])
        if not coordinates:
            # What was for another rank was for the one that had the number then, not for who gets it later.
            self.passed(step)

    def passed(self, step: int) -> None:
        """Drop the faults of a step that was finished, by this process or before it took part."""
        self._orders = [order for order in self._orders if order["step"] > step]
