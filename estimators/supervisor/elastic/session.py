"""What the parts of an elastic controller share: the state, who there is, the loop, and whom to tell."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from container.contract.failures import Cause, Failure
from container.contract.messages import encode
from container.contract.strategies import Elastic
from container.system.asyncio_loop import AsyncioLoop
from container.system.loop import Timer
from estimators.backends.base import Backend
from estimators.supervisor.elastic.course import TRANSITIONS, State, TrainingEvent
from estimators.supervisor.elastic.deciding import failed
from estimators.supervisor.elastic.members import Roster
from estimators.supervisor.elastic.places import Places
from estimators.supervisor.elastic.policy import Limits

if TYPE_CHECKING:
    from estimators.supervisor.elastic.controller import ElasticController
    from estimators.supervisor.supervisor import Supervisor


class Session:
    """One attempt of an elastic job.

    Args:
        controller: The controller, which decides anew when something has changed.
        loop: The supervisor's loop.
        job: The supervisor.
        backend: Where the hosts run.
        strategy: The job's strategy.
        roster: Who there is.
        limits: How much a membership may change at once.

    Attributes:
        state: Where the training stands.
        failures: Of the workers that have failed last, by their names.
        consequences: The workers whose failure follows from another one's.
        places: The places that are named, where somebody names them.
        closing: What ends when nothing is decided any more.
    """

    def __init__(
        self,
        controller: ElasticController,
        loop: AsyncioLoop,
        job: Supervisor,
        backend: Backend,
        strategy: Elastic,
        roster: Roster,
        limits: Limits,
    ) -> None:
        self.controller = controller
        self.job = job
        self.backend = backend
        self.strategy = strategy
        self.roster = roster
        self.limits = limits
        self.state = State.GATHERING
        self.failures: dict[str, Failure] = {}
        self.consequences: set[str] = set()
        self.places: Places | None = None
        self.closing = contextlib.ExitStack()
        self._loop = loop
        self._timers: set[Timer] = set()

    @property
    def over(self) -> bool:
        """Whether nothing is decided any more."""
        return self.state is State.OVER

    def move(self, turn: TrainingEvent) -> None:
        """Go to the next state."""
        self.state = TRANSITIONS.following(self.state, turn)

    def clock(self) -> float:
        """Return seconds on a clock that does not go back."""
        return self._loop.time()

    def later(self, seconds: float, callback: Callable[[], None]) -> Timer:
        """Call something back, unless nothing is decided any more then."""

        def call() -> None:
            self._timers.discard(timer)
            if not self.over:
                callback()

        timer = self._loop.call_later(seconds, call)
        self._timers.add(timer)
        return timer

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine beside everything else."""
        self._loop.start(coroutine)

    def instruct(self, host: str, operation: str, **values: Any) -> None:
        """Tell a host's toolkit what to do."""
        self.backend.say(host, encode({"op": operation, **values}))

    def note(self) -> None:
        """Keep the membership with the job's status."""
        self.job.note_hosts(self.roster.to_list())

    def fail(self, failure: Failure) -> None:
        """The training cannot go on."""
        if self.over:
            return
        self.close()
        self.job.fail_job(failure)

    def fail_with(self, message: str, cause: Cause) -> None:
        """It cannot go on, for a reason of its own."""
        self.fail(failed(message, cause))

    def close(self) -> None:
        """Decide nothing any more."""
        if self.over:
            return
        self.move(TrainingEvent.END)
        self.closing.close()
        for timer in self._timers:
            timer.cancel()
