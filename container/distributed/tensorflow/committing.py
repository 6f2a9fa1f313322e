"""Decide when an elastic training commits its state, and when its ranks check for changes of the hosts.

A commit is a copy of the training's state in memory, from which the training continues after a failure. All ranks must
make the same decisions. Therefore the decisions depend only on values that are equal on all ranks: the number of steps
since the rendezvous, and intervals that rank 0 has chosen for all ranks.
"""

from __future__ import annotations

import collections
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from container.checkpoint.keras_callback import KerasCallback
from container.contract import events
from container.distributed.core.epoch_sharding import Dealing
from container.distributed.core.notice import Listener, notice, telling_end

if TYPE_CHECKING:
    from container.distributed.tensorflow.elastic import ElasticCluster

#: How often ranks check whether hosts are about to join or leave, in seconds.
CHECK_EVERY_S = 0.1
#: Before the first failure, commits may take this share of the training time, even if they are then more frequent than
#: with Young's interval.
COMMIT_SHARE = 0.001
#: The assumed mean time between failures before the first failure, in seconds.
ASSUMED_MTBF_S = 3600.0
#: Number of steps after which the intervals are chosen for the first time.
_FIRST_STEPS = 4
#: If a step takes longer than this, in seconds, ranks check for host updates with a separate message, and not with the
#: next step's gradients.
_LONG_STEP_S = 1.0
#: Number of recent step times from which the median is computed.
_TIMED_STEPS = 50
#: Maximum number of steps until rank 0 chooses the intervals again. Each choice is sent to all ranks in a message.
_MOST_STEPS = 1000


def commit_interval(*, cost_s: float, step_s: float, elapsed_s: float, failures: int) -> int:
    """Return the number of steps between two commits.

    The result is Young's interval. Before the first failure, the interval is at most ``cost_s / COMMIT_SHARE`` or
    ``CHECK_EVERY_S`` seconds, whichever is longer.
    Source: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974. The lost
    time is minimal if the time between two commits is ``sqrt(2 * cost * MTBF)``.

    Args:
        cost_s: Duration of a commit in seconds.
        step_s: Duration of a step in seconds.
        elapsed_s: Duration of the training so far, in seconds.
        failures: Number of failures so far.
    """
    step_s = max(step_s, 1e-6)
    mean = elapsed_s / failures if failures else ASSUMED_MTBF_S
    seconds = math.sqrt(2.0 * cost_s * max(mean, step_s))
    if not failures:
        # After a failure, all steps since the last commit are repeated. If commits are nearly free, a longer interval
        # has therefore no advantage.
        seconds = min(seconds, max(cost_s / COMMIT_SHARE, CHECK_EVERY_S))
    return max(1, math.ceil(seconds / step_s))


class Commits(KerasCallback):
    """A callback that commits the training's state, and checks for changes of the hosts, at intervals that rank 0
    chooses.

    A new object is created after each rendezvous of the ranks. The object is used for all calls of ``fit`` until the
    next rendezvous.

    Args:
        cluster: The cluster.
        state: The training's state, from :func:`horovod_state`.
        every: Number of steps between two commits. If None, rank 0 chooses the number.
        save: Saves the training's state to the disk. This function is called after SIGTERM. None to save nothing.
    """

    def __init__(self, cluster: ElasticCluster, state: Any, *, every: int | None, save: Listener | None = None) -> None:
        self._cluster = cluster
        self._state = state
        self._every = every
        self._save = save
        self._dealing = Dealing(records=0, position=0, size=1, per_step=1)
        self._dealt = 0  # number of steps in this distribution
        # Numbers of steps in this distribution: finished, already added to the state, at the last check, at the last
        # commit, and at which the next action is due.
        self._steps = self._settled = self._looked = self._committed = self._due = 0
        # The next two values are equal on all ranks, so that all ranks choose the intervals at the same step.
        self._first_step = state.step
        self._choose_at = state.step + _FIRST_STEPS
        self._last_act = time.monotonic()
        self._steps_s: collections.deque[float] = collections.deque(maxlen=_TIMED_STEPS)
        self._cost_s: float | None = None
        self._told = 0.0
        state.settle = self.settle
        #: Whether a callback wants the training to stop now.
        self.stop = False

    def deal(self, dealing: Dealing) -> None:
        """Begin a new distribution of an epoch's remaining records: set all numbers of steps to 0.

        Args:
            dealing: The distribution of the remaining records over the ranks.
        """
        self._dealing, self._dealt = dealing, dealing.steps
        self._steps = self._settled = self._looked = self._committed = self._due = 0
        self.stop = False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Stop this ``fit`` after one epoch.

        Each call of ``fit`` gets the number of all epochs as an argument, but must run only one epoch.
        """
        self.settle()  # a callback may have ended the epoch at any step
        self.stop = bool(self.model.stop_training)
        self.model.stop_training = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Record the time at which the first step starts."""
        self._last_act = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Do what is due after a step, or after several steps of one execution: inject faults, save the training after
        SIGTERM, commit, or check for changes of the hosts. All ranks call this method after the same step.

        Raises:
            HostsUpdatedInterrupt: hosts have joined, or will leave soon.
        """
        # Keep this method short: the steps fill the processor's caches, so that Python code between steps runs ten
        # times slower than in a loop.
        #
        # Keras 3 counts the epoch's last execution as a full one, even if it had fewer steps.
        self._steps = min(batch + 1, self._dealt)
        if self._steps >= self._due or notice.came:
            self._act()

    def settle(self) -> None:
        """Update the state's step and position to the last finished step. This method is called only when an action is
        due, and not after each step, so that steps take less time.
        """
        state, made = self._state, self._steps - self._settled
        self._settled = self._steps
        state.step += made
        state.position = self._dealing.after(self._steps)
        state.furthest = max(state.furthest, state.step)

    def _act(self) -> None:
        state = self._state
        now = time.monotonic()
        if made := self._steps - self._settled:
            step_s = (now - self._last_act) / made
            self._steps_s.extend([step_s] * min(made, _TIMED_STEPS))
        self._last_act = now
        self.settle()
        faults = self._cluster.faults
        if faults.pending:
            faults.reached(state.step, rank=self._cluster.rank)
        if self._save is not None and notice.came and self._cluster.is_chief:
            self._save()
            events.emit("preempted", epoch=state.epoch, step=state.step, position=state.position)
            telling_end("the training is saved")
        if self._steps >= self._dealt:
            # After the last step, do not commit or check here: Keras must first call the epoch's callbacks and the
            # validation. If the state was committed here, and the ranks were then rolled back to this commit, no step
            # of the epoch would be left, and Keras would never end the epoch.
            return
        commits = self._steps - self._committed >= (self._every or state.commit_every)
        if commits:
            self._commit()
        if state.step >= self._choose_at:
            self._choose()
        if commits or self._steps - self._looked >= state.check_every:
            self._looked = self._steps
            state.look()
        self._due = min(
            self._steps + 1 if faults.pending else self._dealt,
            self._dealt,
            self._looked + max(1, state.check_every),
            self._committed + (self._every or state.commit_every),
            self._steps + self._choose_at - state.step,
        )

    def _commit(self) -> None:
        self._committed = self._steps
        began = time.monotonic()
        self._state.save()
        now = time.monotonic()
        if self._cost_s is None and self._every is None:
            # all ranks get here at the same step, because the first commit after the rendezvous is each rank's first
            self._choose_at = self._state.step
        self._cost_s = now - began
        self._last_act += self._cost_s
        if now - self._told > 1.0 and self._cluster.is_chief:
            self._told = now
            state = self._state
            events.emit(
                "commit",
                epoch=state.epoch,
                step=state.step,
                position=state.position,
                every=self._every or state.commit_every,
                seconds=round(self._cost_s, 6),
            )

    def _choose(self) -> None:
        """Let rank 0 choose, for all ranks, the number of steps between two commits, and between two checks for changes
        of the hosts. During the training, the number of steps until the next choice grows.
        """
        state = self._state
        step_s = float(np.median(self._steps_s))
        state.check_every, state.commit_every = self._cluster.broadcast_numbers(
            [
                # A host update that is sent with the gradients arrives one step later than in a separate message. For
                # long steps, a separate message is worth its cost (0).
                max(1, round(CHECK_EVERY_S / max(step_s, 1e-6))) if step_s < _LONG_STEP_S else 0,
                commit_interval(
                    cost_s=self._cost_s or 1e-4,
                    step_s=step_s,
                    elapsed_s=time.monotonic() - state.began,
                    failures=state.failures,
                ),
            ],
            name="intervals",
        )
        self._choose_at = state.step + min(max(state.step - self._first_step, _FIRST_STEPS), _MOST_STEPS)
