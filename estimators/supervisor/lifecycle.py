"""Define the stages that a job passes through in its supervisor, and the transitions between them, as a table."""

from __future__ import annotations

import enum

from estimators.supervisor.transitions import Table


class Stage(enum.Enum):
    """The stage of a job."""

    #: An attempt is in progress. Its hosts are being prepared or are running.
    RUNNING = "running"
    #: An attempt is over, and the next attempt may not begin yet.
    WAITING = "waiting"
    #: The attempt cannot continue. Its hosts are terminated. Then their outputs are collected, or another attempt
    #: follows.
    FAILING = "failing"
    #: The job is being stopped. Its hosts have time to save, and then their outputs are collected.
    STOPPING = "stopping"
    #: Something failed while the job was being stopped. The job's hosts are terminated.
    ENDING = "ending"
    #: All hosts have ended successfully, and their outputs are collected.
    COLLECTING = "collecting"
    #: The job is over. The last status has been written or is being written.
    OVER = "over"

    @property
    def is_stopping(self) -> bool:
        """Return whether the job is being stopped, by a client or by a limit."""
        return self in (Stage.STOPPING, Stage.ENDING)

    @property
    def is_ending(self) -> bool:
        """Return whether the job is failing, ending or over, so that no more processes are started."""
        return self in (Stage.FAILING, Stage.ENDING, Stage.OVER)


class Happening(enum.Enum):
    """An event that changes the stage of a job."""

    #: The attempt cannot continue because of a failure.
    FAILURE = "failure"
    #: A client, a limit or the caller's end stops the job.
    STOP = "stop"
    #: All hosts have ended, and another attempt follows.
    RETRY = "retry"
    #: The next attempt may begin.
    RESTART = "restart"
    #: All hosts have ended, and no other attempt follows.
    COLLECT = "collect"
    #: All hosts have ended and all outputs are collected, or the job does not wait for them.
    FINISH = "finish"


TRANSITIONS = Table(
    "a job",
    {
        (Stage.RUNNING, Happening.FAILURE): Stage.FAILING,
        (Stage.RUNNING, Happening.STOP): Stage.STOPPING,
        (Stage.RUNNING, Happening.RETRY): Stage.WAITING,
        (Stage.RUNNING, Happening.COLLECT): Stage.COLLECTING,
        (Stage.RUNNING, Happening.FINISH): Stage.OVER,
        (Stage.WAITING, Happening.FAILURE): Stage.FAILING,
        (Stage.WAITING, Happening.STOP): Stage.STOPPING,
        (Stage.WAITING, Happening.RESTART): Stage.RUNNING,
        (Stage.WAITING, Happening.FINISH): Stage.OVER,
        # A failing job ends with its failure, even if a stop is requested. But if another attempt would follow the
        # failure, the job is stopped instead.
        (Stage.FAILING, Happening.FAILURE): Stage.FAILING,
        (Stage.FAILING, Happening.RETRY): Stage.WAITING,
        (Stage.FAILING, Happening.COLLECT): Stage.FAILING,
        (Stage.FAILING, Happening.FINISH): Stage.OVER,
        (Stage.STOPPING, Happening.FAILURE): Stage.ENDING,
        (Stage.STOPPING, Happening.COLLECT): Stage.STOPPING,
        (Stage.STOPPING, Happening.FINISH): Stage.OVER,
        (Stage.ENDING, Happening.FAILURE): Stage.ENDING,
        (Stage.ENDING, Happening.COLLECT): Stage.ENDING,
        (Stage.ENDING, Happening.FINISH): Stage.OVER,
        (Stage.COLLECTING, Happening.FAILURE): Stage.FAILING,
        (Stage.COLLECTING, Happening.STOP): Stage.STOPPING,
        (Stage.COLLECTING, Happening.FINISH): Stage.OVER,
    },
)
