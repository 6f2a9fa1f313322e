"""Write snapshots in a thread while the training continues. The number of pending snapshots is limited.

If the limit is reached, a caller with another snapshot has to wait. Therefore a slow disk slows the training down, but
does not fill the memory. If the thread fails, the training's next call raises the error.
"""

from __future__ import annotations

import abc
import collections
import sys
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

Job = TypeVar("Job")

#: A waiting caller prints a message each time this number of seconds has passed. A slow disk is not an error.
_PATIENCE_S = 60.0


class Target(abc.ABC, Generic[Job]):
    """The interface of an object that writes the jobs of a :class:`BackgroundWriter` to a destination."""

    @abc.abstractmethod
    def write(self, job: Job) -> None:
        """Write one job. The writer's thread calls this method."""

    def close(self) -> None:
        """Release the resources for writing. This method is called after the last job, even if a job failed."""


class BackgroundWriter(Generic[Job]):
    """A writer that writes jobs one after the other in a thread. A job is a piece of data, such as a snapshot.

    Args:
        target: The object that writes each job to the destination.
        pending: Maximum number of pending jobs, including the job that is being written.
        where: Name of the destination, for messages.
    """

    def __init__(self, target: Target[Job], *, pending: int = 1, where: str = "the disk") -> None:
        if not isinstance(pending, int) or pending < 1:
            raise ValueError(f"pending must be at least 1, got {pending!r}.")
        self._target = target
        self._pending = pending
        self._where = where
        self._queue: collections.deque[Job] = collections.deque()
        self._under_way = 0
        self._errors: collections.deque[Exception] = collections.deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._closes_target = False  # whether the thread closes the target

    @property
    def idle(self) -> bool:
        """Return whether a new job would be accepted without waiting."""
        return self._under_way < self._pending

    @property
    def closed(self) -> bool:
        """Return whether the writer is closed and accepts no more jobs."""
        return self._closed

    def check_open(self) -> None:
        """Raise ValueError if the writer is closed."""
        if self._closed:
            raise ValueError("the Checkpointer is closed. To save more, make another Checkpointer.")

    def make_room(self) -> None:
        """Wait until one more job can be submitted, or until an earlier job has failed.

        Raises:
            Exception: the error of an earlier job, if the error has not been raised yet.
            ValueError: the writer is closed.
        """
        with self._changed:
            self.check_open()
            self._wait_until(lambda: self.idle or bool(self._errors))
            self._raise()

    def submit(self, job: Job) -> None:
        """Submit a job to the writer's thread. The caller must have called :meth:`make_room` for the job."""
        with self._changed:
            self._under_way += 1
            self._queue.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="checkpoint-writer", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def wait(self) -> None:
        """Wait until all jobs are written.

        Raises:
            Exception: the error of a job. Each error is raised only once.
        """
        with self._changed:
            self._wait_until(lambda: self._under_way == 0)
            self._raise()

    def close(self) -> None:
        """Write the pending jobs, stop the thread, and close the target.

        Raises:
            Exception: the error of a job, if the error has not been raised yet.
        """
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
            if thread is threading.current_thread():
                # The garbage collector has run in the writer's thread and has finalized the Checkpointer. The thread
                # cannot wait for itself.
                self._closes_target = True
                return
        try:
            if thread is not None:
                began = time.monotonic()
                thread.join(_PATIENCE_S)
                while thread.is_alive():
                    self._say_waiting(began)
                    thread.join(_PATIENCE_S)
        finally:
            self._target.close()
        self._raise()

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true, and print a message each minute. The caller holds the lock."""
        began = time.monotonic()
        while not self._changed.wait_for(condition, _PATIENCE_S):
            self._say_waiting(began)

    def _say_waiting(self, began: float) -> None:
        print(
            f"checkpoints: waited {time.monotonic() - began:.0f} s so far for the current write to "
            f"{self._where} to finish",
            file=sys.stderr,
            flush=True,
        )

    def _raise(self) -> None:
        if self._errors:
            raise self._errors.popleft()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._queue or self._closed)
                if not self._queue:
                    break
                job = self._queue.popleft()
            error = None
            try:
                self._target.write(job)
            except Exception as caught:  # noqa: BLE001 - raised by the training's next call
                error = caught
            del job
            with self._changed:
                if error is not None:
                    self._errors.append(error)
                self._under_way -= 1
                self._changed.notify_all()
        if self._closes_target:
            self._target.close()


class Stopwatch:
    """A stopwatch for the wall-clock time and the processor time of the calling thread, in seconds."""

    def __init__(self) -> None:
        self._wall = time.monotonic()
        self._processor = time.thread_time()

    @property
    def wall_s(self) -> float:
        """Return the wall-clock time since the stopwatch was created, in seconds."""
        return time.monotonic() - self._wall

    @property
    def processor_s(self) -> float:
        """Return the processor time since the stopwatch was created, in seconds."""
        return time.thread_time() - self._processor
