"""Define the states of an elastic training and the transitions between them, as a table."""

from __future__ import annotations

import enum

from estimators.supervisor.transitions import Table


class State(enum.Enum):
    """The state of an elastic training."""

    #: The first workers are starting. Horovod's driver does not know any worker yet.
    GATHERING = "gathering"
    #: The driver knows the first workers, but they have not formed a cluster yet.
    FORMING = "forming"
    #: The members train.
    TRAINING = "training"
    #: A member was lost. The other members form a cluster again by themselves, so that nothing is sent to the driver.
    SETTLING = "settling"
    #: Too few workers are left to train. The training waits for more workers.
    SHORT = "short"
    #: The membership is final because the training is complete, has failed, or is being stopped.
    OVER = "over"

    @property
    def has_begun(self) -> bool:
        """Return whether the first workers have been sent to the driver."""
        return self is not State.GATHERING

    @property
    def has_met(self) -> bool:
        """Return whether the workers have formed a cluster at least once."""
        return self not in (State.GATHERING, State.FORMING)


class TrainingEvent(enum.Enum):
    """An event that changes the state of an elastic training."""

    #: The driver receives the first workers.
    BEGIN = "begin"
    #: The workers have formed a cluster, and know their ranks.
    MEETING = "meeting"
    #: A member was lost.
    LOSS = "loss"
    #: Since the last loss, the other members have had enough time to form a cluster again.
    SETTLED = "settled"
    #: Fewer workers are available than the training needs.
    SHORTAGE = "shortage"
    #: The training is complete, fails, or is stopped.
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
        # A cluster with too few workers accepts each new worker at once, even right after a loss.
        (State.SHORT, TrainingEvent.MEETING): State.TRAINING,
        (State.SHORT, TrainingEvent.LOSS): State.SHORT,
        (State.SHORT, TrainingEvent.SETTLED): State.SHORT,
        **{(state, TrainingEvent.END): State.OVER for state in State},
    },
)
