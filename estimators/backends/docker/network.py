"""A job's network, which is made while the supervisor loads and the engine makes the containers that will be in it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from estimators.backends.docker.engine import Engine
from estimators.backends.docker.engine_errors import EngineError
from estimators.backends.docker.head_start import Handed


class Network:
    """A bridge network that is being made; threads may share it.

    Args:
        engine: Where.
        name: Its name.
        labels: What tells whose it is.
        internal: Whether it leads nowhere else.
        handed: What the caller may have made of it.
    """

    def __init__(
        self, engine: Engine, name: str, labels: Mapping[str, str], *, internal: bool, handed: Handed | None = None
    ) -> None:
        self._engine = engine
        self._name = name
        self._labels = labels
        self._internal = internal
        self._handed = handed
        self._over = threading.Event()
        self._error: EngineError | None = None

    def make(self) -> None:
        """In a thread of its own: make it, unless the caller has.

        Raises:
            EngineError: it cannot be made; :meth:`wait` raises the same.
        """
        try:
            if self._handed is None or not self._handed.has_network():
                self._engine.create_network(self._name, self._labels, internal=self._internal)
        except EngineError as error:
            self._error = error
            raise
        except BaseException as error:
            self._error = EngineError(f"the network {self._name!r} could not be made: {error!r}")
            raise
        finally:
            self._over.set()

    def wait(self) -> None:
        """Wait until it is there.

        Raises:
            EngineError: it could not be made.
        """
        self._over.wait()
        if self._error is not None:
            raise self._error

    def beside(self, create: Callable[[], str]) -> str:
        """Make a container for it, without starting it; with an engine that lets it, while the network is made.

        Docker looks for a container's network when the container starts, Podman when it is made.

        Returns:
            What ``create`` returns: the container's id.

        Raises:
            EngineError: the network or the container could not be made.
        """
        there = self._over.is_set()
        try:
            return create()
        except EngineError:
            if there:
                raise
        self.wait()
        return create()
