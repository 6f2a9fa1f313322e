"""The course of an elastic training: where it stands, and what may happen there. Pure."""

from __future__ import annotations

import enum

from estimators.supervisor.transitions import Table


class State(enum.Enum):
    """Where an elastic training stands."""

    #: The first workers are coming; Horovod's driver has been told of nobody.
    GATHERING = "gathering"
    #: The driver has been told of the first workers, and they have not met.
    FORMING = "forming"
    #: The members train.
    TRAINING = "training"
    #: A member was lost: the others meet anew by themselves, and must not be told to once more.
    SETTLING = "settling"
    #: Too few are left to go on with: they wait for others.
    SHORT = "short"
    #: Nothing is decided any more: it is complete, fails, or is being stopped.
    OVER = "over"

    @property
    def has_begun(self) -> bool:
        """Whether the driver has been told of the first workers."""
        return self is not State.GATHERING

    @property
    def has_met(self) -> bool:
        """Whether there has been a membership."""
        return self not in (State.GATHERING, State.FORMING)


class TrainingEvent(enum.Enum):
    """What takes an elastic training from one state to another."""

    #: The driver is told of the first workers.
    BEGIN = "begin"
    #: The workers have met, and know their ranks.
    MEETING = "meeting"
    #: A member was lost.
    LOSS = "loss"
    #: Since the last loss the others have had time to meet.
    SETTLED = "settled"
    #: Fewer workers are there than it needs.
    SHORTAGE = "shortage"
    #: It is complete, fails, or is stopped.
    END = "end"


TRANSITIONS = Table(
    "an elastic training",
    {
        (State.GATHERING, TrainingEvent.BEGIN): State.FORMING,
        (State.FORMING, TrainingEvent.MEETING): State.TRAINING,
        (State.TRAINING, TrainingEvent.MEETING): State.TRAINING,
        (State.TRAINING, TrainingEvent.LOSS): State.SETTLING,
        (State.TRAINING, TrainingEvent.SETTLED): State.TRAINING,
        (State.TRAINING, TrainingEvent.SHORTAGE): State.SHORT,
        (State.SETTLING, TrainingEvent.MEETING): State.TRAINING,
        (State.SETTLING, TrainingEvent.LOSS): State.SETTLING,
        (State.SETTLING, TrainingEvent.SETTLED): State.TRAINING,
        (State.SETTLING, TrainingEvent.SHORTAGE): State.SHORT,
        # Whoever comes is wanted at once, however short ago the last loss was.
        (State.SHORT, TrainingEvent.MEETING): State.TRAINING,
        (State.SHORT, TrainingEvent.LOSS): State.SHORT,
        (State.SHORT, TrainingEvent.SETTLED): State.SHORT,
        **{(state, TrainingEvent.END): State.OVER for state in State},
    },
)
