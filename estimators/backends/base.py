"""What every backend does: run a spec's hosts somewhere, and say what they print and how they end.

A backend lives in the job's supervisor. It takes the two values that describe a job (spec and options) and nothing
else from the user's side.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable

from container.contract.failures import Failure
from container.supervision.loop import Loop
from estimators.jobs.record import JobRecord
from estimators.spec import RunOptions, TrainingJobSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class HostEnd:
    """How a host's training process ended.

    Attributes:
        host: The host.
        exit_code: The exit status, if it exited.
        signal: The signal that killed it, if one did.
        failure: What the backend itself knows of the cause (a container that ran out of memory, say).
    """

    host: str
    exit_code: int | None = None
    signal: int | None = None
    failure: Failure | None = None


@dataclasses.dataclass(kw_only=True)
class Callbacks:
    """How a backend tells the supervisor what happens.

    Attributes:
        secondary_status: A secondary status of SageMaker's (``Downloading``, ``Training``) and a message.
        output: A host's name and bytes that its training process printed.
        host_ended: A host's training process ended, and everything it printed has been given.
        failed: The backend cannot go on; every host that runs has to be ended.
        outputs_collected: The outputs are in place, or the failure that prevented it.
    """

    secondary_status: Callable[[str, str], None]
    output: Callable[[str, bytes], None]
    host_ended: Callable[[HostEnd], None]
    failed: Callable[[Failure], None]
    outputs_collected: Callable[[Failure | None], None]


class Backend(abc.ABC):
    """Runs one job. All methods return at once; the loop does the rest.

    Args:
        loop: The supervisor's loop.
        record: The job's record.
        spec: The job.
        options: What only the supervisor needs.
        callbacks: Where to tell what happens.
    """

    #: What it is called in errors.
    name: str

    def __init__(
        self, loop: Loop, record: JobRecord, spec: TrainingJobSpec, options: RunOptions, callbacks: Callbacks
    ) -> None:
        self.loop = loop
        self.record = record
        self.spec = spec
        self.options = options
        self.callbacks = callbacks
        #: The caller's umask, for what scripts write.
        self.umask = 0o022
        #: Children of the supervisor that are not the job's, and are left alone when everything else is ended.
        self.protected: set[int] = set()

    @classmethod
    @abc.abstractmethod
    def check(cls, spec: TrainingJobSpec, options: RunOptions) -> None:
        """Refuse by name what this backend cannot do; called before anything is claimed or started.

        Raises:
            UnsupportedError: with the feature, the reason and the remedy.
        """

    @property
    @abc.abstractmethod
    def running(self) -> bool:
        """Whether a host runs whose end will still be told."""

    @abc.abstractmethod
    def start(self, attempt: int) -> None:
        """Prepare the inputs, then start every host."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Ask every host to stop, with the grace that the options give to the script."""

    @abc.abstractmethod
    def end_now(self) -> None:
        """End every host without grace."""

    def save_checkpoints(self, done: Callable[[Failure | None], None]) -> None:
        """Bring the checkpoints of a job that failed to where the spec wants them; every host has ended.

        Args:
            done: Takes the failure that prevented it, or None.
        """
        done(None)

    @abc.abstractmethod
    def collect_outputs(self) -> None:
        """Pack the model and the outputs to where the spec wants them."""

    @abc.abstractmethod
    def cleanup(self) -> None:
        """Remove everything that is not part of the record. The last call, also after failures; must be quick."""
