"""The course of a job in its supervisor: where it stands, and what may happen there. Pure."""

from __future__ import annotations

import enum

from estimators.supervisor.transitions import Table


class Stage(enum.Enum):
    """Where a job stands."""

    #: An attempt is under way: its hosts are prepared, or run.
    RUNNING = "running"
    #: An attempt is over, and the next one's time has not come.
    WAITING = "waiting"
    #: The attempt cannot go on: its hosts are ended, and then what they leave is collected.
    FAILING = "failing"
    #: The job is to stop: its hosts have time to save, and then what they leave is collected.
    STOPPING = "stopping"
    #: As it was to stop, something failed: its hosts are ended.
    ENDING = "ending"
    #: All hosts have ended well, and what they leave is collected.
    COLLECTING = "collecting"
    #: The last status is being written, or is.
    OVER = "over"

    @property
    def is_stopping(self) -> bool:
        """Whether somebody has asked for the end, or a limit has."""
        return self in (Stage.STOPPING, Stage.ENDING)

    @property
    def is_ending(self) -> bool:
        """Whether nothing more is started."""
        return self in (Stage.FAILING, Stage.ENDING, Stage.OVER)


class Happening(enum.Enum):
    """What takes a job from one stage to another."""

    #: Something failed with which the attempt cannot go on.
    FAILURE = "failure"
    #: A client, a limit or the caller's end asks for the job's end.
    STOP = "stop"
    #: All hosts have ended, and another attempt is to follow.
    RETRY = "retry"
    #: Its time has come.
    RESTART = "restart"
    #: All hosts have ended, and none is to follow.
    COLLECT = "collect"
    #: Nothing of the job is left to wait for.
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
        # Nobody stops it meanwhile: the failure is the job's. But where another attempt was to follow, the job is
        # stopped.
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
