"""Define SageMaker's statuses of a training job, and the table that says which status may follow which status.

The statuses are the values of ``TrainingJobStatus`` and ``SecondaryStatus`` in SageMaker's DescribeTrainingJob.
``Deleting`` is omitted. Secondary statuses that SageMaker no longer reports are also omitted, unless fleetfit's own
backends use them.
"""

from __future__ import annotations

import enum


class TrainingJobStatus(str, enum.Enum):
    """The primary status of a job. A member equals its text, so that users can write ``job.status == "Completed"``."""

    IN_PROGRESS = "InProgress"
    COMPLETED = "Completed"
    FAILED = "Failed"
    STOPPING = "Stopping"
    STOPPED = "Stopped"

    @property
    def is_terminal(self) -> bool:
        """Return whether the job has ended."""
        return self in _TERMINAL

    def __str__(self) -> str:
        return self.value


class SecondaryStatus(str, enum.Enum):
    """The secondary status of a job, such as ``Downloading``, which is more detailed than the primary status.

    A member equals its text.
    """

    STARTING = "Starting"
    PENDING = "Pending"
    DOWNLOADING_TRAINING_IMAGE = "DownloadingTrainingImage"
    DOWNLOADING = "Downloading"
    TRAINING = "Training"
    UPDATING = "Updating"
    INTERRUPTED = "Interrupted"
    RESTARTING = "Restarting"
    UPLOADING = "Uploading"
    STOPPING = "Stopping"
    COMPLETED = "Completed"
    FAILED = "Failed"
    STOPPED = "Stopped"
    MAX_RUNTIME_EXCEEDED = "MaxRuntimeExceeded"
    MAX_WAIT_TIME_EXCEEDED = "MaxWaitTimeExceeded"

    @property
    def is_terminal(self) -> bool:
        """Return whether the job has ended."""
        return not TRANSITIONS[self]

    def primary(self, current: TrainingJobStatus = TrainingJobStatus.IN_PROGRESS) -> TrainingJobStatus:
        """Return the primary status that belongs to this secondary status.

        Args:
            current: The job's present primary status. It matters for ``Uploading``: a job that is being stopped stays
                ``Stopping``.
        """
        if self in _PRIMARY:
            return _PRIMARY[self]
        return TrainingJobStatus.STOPPING if current is TrainingJobStatus.STOPPING else TrainingJobStatus.IN_PROGRESS

    def can_become(self, following: SecondaryStatus) -> bool:
        """Return whether a job may change from this status to ``following``."""
        return following in TRANSITIONS[self]

    def __str__(self) -> str:
        return self.value


_S = SecondaryStatus

_ENDED_BY_STOP = frozenset({_S.STOPPED, _S.MAX_RUNTIME_EXCEEDED, _S.MAX_WAIT_TIME_EXCEEDED})
#: Statuses that may follow at any time before the job ends.
_ANY_TIME = frozenset({_S.STOPPING, _S.FAILED})
_PREPARING = frozenset({_S.PENDING, _S.DOWNLOADING_TRAINING_IMAGE, _S.DOWNLOADING, _S.TRAINING})
_DISTURBED = frozenset({_S.INTERRUPTED, _S.RESTARTING})

_FOLLOWING: dict[SecondaryStatus, frozenset[SecondaryStatus]] = {
    _S.STARTING: _PREPARING | _DISTURBED | _ANY_TIME,
    _S.PENDING: _PREPARING | _DISTURBED | _ANY_TIME | {_S.STARTING},
    _S.DOWNLOADING_TRAINING_IMAGE: _PREPARING | _DISTURBED | _ANY_TIME,
    _S.DOWNLOADING: _PREPARING | _DISTURBED | _ANY_TIME,
    _S.TRAINING: _DISTURBED | _ANY_TIME | {_S.UPDATING, _S.UPLOADING, _S.COMPLETED},
    _S.UPDATING: _DISTURBED | _ANY_TIME | {_S.TRAINING, _S.UPLOADING},
    _S.INTERRUPTED: _PREPARING | _ANY_TIME | {_S.STARTING, _S.RESTARTING, _S.MAX_WAIT_TIME_EXCEEDED},
    _S.RESTARTING: _PREPARING | _ANY_TIME | {_S.STARTING, _S.INTERRUPTED},
    _S.UPLOADING: _ANY_TIME | _ENDED_BY_STOP | {_S.COMPLETED},
    _S.STOPPING: _ENDED_BY_STOP | {_S.UPLOADING, _S.FAILED},
    _S.COMPLETED: frozenset(),
    _S.FAILED: frozenset(),
    _S.STOPPED: frozenset(),
    _S.MAX_RUNTIME_EXCEEDED: frozenset(),
    _S.MAX_WAIT_TIME_EXCEEDED: frozenset(),
}

#: The statuses that may follow each secondary status. No status follows a terminal status.
TRANSITIONS = {state: following - {state} for state, following in _FOLLOWING.items()}

_TERMINAL = frozenset({TrainingJobStatus.COMPLETED, TrainingJobStatus.FAILED, TrainingJobStatus.STOPPED})

#: The primary status that always belongs to a secondary status. With a secondary status that is not listed here, a job
#: stays ``InProgress`` or ``Stopping``.
_PRIMARY: dict[SecondaryStatus, TrainingJobStatus] = {
    _S.STOPPING: TrainingJobStatus.STOPPING,
    _S.COMPLETED: TrainingJobStatus.COMPLETED,
    _S.FAILED: TrainingJobStatus.FAILED,
    **dict.fromkeys(_ENDED_BY_STOP, TrainingJobStatus.STOPPED),
}

#: The default message for each status. The texts are SageMaker's texts if SageMaker has a message for the status.
MESSAGES: dict[SecondaryStatus, str] = {
    _S.STARTING: "Starting the training job",
    _S.PENDING: "Waiting for capacity",
    _S.DOWNLOADING_TRAINING_IMAGE: "Downloading the training image",
    _S.DOWNLOADING: "Downloading input data",
    _S.TRAINING: "Training in progress",
    _S.UPDATING: "The cluster is changing its size",
    _S.INTERRUPTED: "Instances were interrupted",
    _S.RESTARTING: "Restarting the training job",
    _S.UPLOADING: "Uploading generated training model",
    _S.STOPPING: "Stopping the training job",
    _S.COMPLETED: "Training job completed",
    _S.FAILED: "Training job failed",
    _S.STOPPED: "Training job stopped",
    _S.MAX_RUNTIME_EXCEEDED: "Training job runtime exceeded MaxRuntimeInSeconds",
    _S.MAX_WAIT_TIME_EXCEEDED: "Training job wait time exceeded MaxWaitTimeInSeconds",
}
