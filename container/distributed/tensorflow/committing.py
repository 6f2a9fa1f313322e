"""Decide when an elastic training commits, and when its ranks check whether hosts come or go.

Whatever the ranks do together must follow from what they have in common: counts of steps since they met, and what rank
0 has chosen for all.
"""

from __future__ import annotations

import collections
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from container.contract import events
from container.distributed.core.epoch_sharding import Dealing
from container.distributed.core.notice import Listener, notice, telling_end
from container.distributed.tensorflow.hooks import Callback

if TYPE_CHECKING:
    from container.distributed.tensorflow.elastic import ElasticCluster

#: How often ranks look whether hosts are about to come or go, in seconds.
CHECK_EVERY_S = 0.1
#: The share of the time that commits take while nothing has failed, if Young's interval is not shorter.
COMMIT_SHARE = 0.001
#: The mean time between failures that is assumed before any has been seen, in seconds.
ASSUMED_MTBF_S = 3600.0
#: Steps after which the intervals are first chosen.
_FIRST_STEPS = 4
#: A step that takes so long, in seconds, is not waited for with news.
_LONG_STEP_S = 1.0
#: Steps of whose times the median counts.
_TIMED_STEPS = 50
#: The most steps until they are chosen again: it takes a message to all ranks.
_MOST_STEPS = 1000


def commit_interval(*, cost_s: float, step_s: float, elapsed_s: float, failures: int) -> int:
    """Return the steps between commits: Young's interval; while nothing has failed, at most that of
    :data:`COMMIT_SHARE`.

    Source: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM 17(9), 1974: the time
    lost is least where commits are ``sqrt(2 * cost * MTBF)`` apart.

    Args:
        cost_s: What a commit takes, in seconds.
        step_s: What a step takes, in seconds.
        elapsed_s: How long the training has run, in seconds.
        failures: How many failures it has seen.
    """
    step_s = max(step_s, 1e-6)
    mean = elapsed_s / failures if failures else ASSUMED_MTBF_S
    seconds = math.sqrt(2.0 * cost_s * max(mean, step_s))
    if not failures:
        # A lost second costs a second: where commits are nearly free there is no reason to wait for long.
        seconds = min(seconds, max(cost_s / COMMIT_SHARE, CHECK_EVERY_S))
    return max(1, math.ceil(seconds / step_s))


class Commits(Callback):
    """Commits and checks for host updates, after as many steps as rank 0 decides.

    It lasts from one meeting of the ranks to the next, over as many calls of ``fit``.

    Args:
        cluster: The cluster.
        state: The state, of :func:`horovod_state`.
        every: Steps between commits; None to choose them.
        save: Saves on disk, for a process that is told to end; None where nothing is saved.
    """

    def __init__(self, cluster: ElasticCluster, state: Any, *, every: int | None, save: Listener | None = None) -> None:
        self._cluster = cluster
        self._state = state
        self._every = every
        self._save = save
        self._dealing = Dealing(records=0, position=0, size=1, per_step=1)
        self._dealt = 0  # its steps
        # Of this dealing: steps that were made, of which the state has heard, at the last look and commit, and at which
        # there is something to do again.
        self._steps = self._settled = self._looked = self._committed = self._due = 0
        # Whatever the ranks do together must follow from what they have in common, as these do.
        self._first_step = state.step
        self._choose_at = state.step + _FIRST_STEPS
        self._last_act = time.monotonic()
        self._steps_s: collections.deque[float] = collections.deque(maxlen=_TIMED_STEPS)
        self._cost_s: float | None = None
        self._told = 0.0
        state.settle = self.settle
        #: Whether a callback wants the training to stop here.
        self.stop = False

    def deal(self, dealing: Dealing) -> None:
        """Begin an epoch, or the rest of one."""
        self._dealing, self._dealt = dealing, dealing.steps
        self._steps = self._settled = self._looked = self._committed = self._due = 0
        self.stop = False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """End this ``fit``, which says what all epochs are, but is for one."""
        self.settle()  # a callback may have ended the epoch at any step
        self.stop = bool(self.model.stop_training)
        self.model.stop_training = True

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin the first step."""
        self._last_act = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """End a step, or several in one execution, on all ranks.

        Raises:
            HostsUpdatedInterrupt: hosts have come or are about to go.
        """
        # Python takes ten times as long between steps, which fill the processor's caches, as it does in a loop.
        # Keras 3 counts the steps that the epoch's last execution would have had.
        self._steps = min(batch + 1, self._dealt)
        if self._steps >= self._due or notice.came:
            self._act()

    def settle(self) -> None:
        """Tell the state of the steps that were made: it hears of them only when there is something to do."""
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
            # The epoch's end comes first, with its callbacks and its validation; a commit and a look follow it. Who is
            # thrown back from there must have a step of this epoch left to train, or its end would never come.
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
            self._choose_at = self._state.step  # on all ranks: the first commit since they met was the first for each
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
        """Let rank 0 choose the intervals for all: often at first, and ever more rarely."""
        state = self._state
        step_s = float(np.median(self._steps_s))
        state.check_every, state.commit_every = self._cluster.broadcast_numbers(
            [
                # News come a step later than a message does: a step that takes long is worth one.
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
