"""Wait for a job: show the logs and the progress, handle interrupts, and kill a supervisor that does not respond.

A job is tied to this process if the job must not continue without this process. A job on SageMaker, for example, is not
tied.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

from estimators.client import ipc_client
from estimators.client.callbacks import EventFeed
from estimators.client.folding import is_startup
from estimators.client.interrupts import Interrupts
from estimators.client.printing import in_jupyter, is_terminal, wants_colour, write_text
from estimators.client.progress import JobProgress
from estimators.job.errors import FleetfitError, JobUnreachableError, shorten_uncaught
from estimators.records import status as statuses
from estimators.records.logs import LogReader

if TYPE_CHECKING:
    from estimators.client.notebook import Pane
    from estimators.client.training_job import TrainingJob
    from estimators.records.logs import LogLine

#: Interval for polling a job that is not tied to this process, in seconds.
_POLL_SECONDS = 0.1
#: Interval for polling a tied job, in seconds. The supervisor of a tied job sends a message when there is news. Polling
#: is needed only if a message is lost.
_TIED_POLL_SECONDS = 1.0
#: Interval at which the status line of a terminal is updated, in seconds.
_LINE_SECONDS = 0.25
#: Pause between two reads of the logs of a job that prints continuously, in seconds. Without the pause, this process
#: would take CPU time from a job on the same machine.
_BREATH_SECONDS = 0.005
#: Maximum number of lines from which the progress is read at once. The last lines are read.
_READ = 50
_PROGRESS = re.compile(rb"poch|POCH|[lL]oss|LOSS")
#: Time after the script's grace period in which the supervisor must end the job, in seconds. Then the supervisor is
#: killed.
ENDING_SECONDS = 15.0

#: Seconds without output or events after which this process pings the supervisor. After three pings in a row without a
#: response (`_PINGS`), the supervisor counts as hanging.
_PING_SECONDS = 15.0
_PINGS = 3


class JobDisplay:
    """The display of the logs and the progress for a waiting caller.

    With None as the stream, neither logs nor progress are displayed. A terminal shows the progress in a line below the
    logs. A notebook shows the progress in a pane. On any other stream, a line is printed when the job reaches a new
    stage, such as ``training``. If a write fails because the disk is full, for example, the output stops and the job
    continues.
    """

    def __init__(self, job: TrainingJob, stream: IO[str] | None, *, all: bool = False) -> None:
        self._job = job
        self._stream = stream
        #: The job's progress, or None if there is no stream.
        self.progress = JobProgress.of(job) if stream is not None else None
        #: The pane in a notebook's cell, which shows the output instead of the stream. None outside of notebooks.
        self.pane: Pane | None = None
        if stream is not None and self.progress is not None and in_jupyter(stream):
            from estimators.client.notebook import pane_for

            self.pane = pane_for(job, self.progress)
        self._stage = self.progress.stage if self.progress is not None else ""  # the last stage that was printed
        self._shown_at = float("-inf")
        self._interrupted = False
        target: Any = self.pane or stream
        self._reader = LogReader(job.record) if stream is not None else None
        self._printer = job._printer(target, all=all, waits=True) if stream is not None else None
        #: The descriptor of the stream if the stream is a pipe or socket. It is watched, because the reader may close
        #: it.
        self.pipe = _pipe_of(stream)

    def show(self, *, final: bool = False) -> bool:
        """Print new lines. Return whether there were new lines."""
        shown = False
        with self._going_on():
            if self._reader is None or self._printer is None:
                return False
            for lines in self._reader.drain(final=final):
                shown = True
                self._notice(lines)
                self._printer.print(lines)
            if not shown:
                self._printer.print(())  # print lines whose waiting time has passed
            if not final:
                self._show_progress()
                return shown
            failure = statuses.failure_of(self._job._status()) if not self._interrupted else None
            self._printer.finish(failure.traceback if failure is not None else None)
            if self.pane is not None:
                self.pane.finish()
        return shown

    def _notice(self, lines: Sequence[LogLine]) -> None:
        """Record that the script is running if a rank has printed a line, and read the progress from the lines.

        TensorFlow's start-up lines do not count.
        """
        progress = self.progress
        if progress is None:
            return
        if progress.awaits_output and any(line.rank is not None and not is_startup(line.data) for line in lines):
            progress.printed()
            self._shown_at = float("-inf")  # show the new stage before the line
            self._show_progress()
        told = [one for one in lines if one.rank in (None, 0) and _PROGRESS.search(one.data)]
        for line in told[-_READ:]:
            progress.read(line.data.decode("utf-8", "replace"), line.time_ns / 1e9)

    def _show_progress(self) -> None:
        """Show the job's progress. Calls within 0.25 seconds after the last display do nothing."""
        now = time.monotonic()
        if self.progress is None or self._printer is None or now - self._shown_at < _LINE_SECONDS:
            return
        self._shown_at = now
        try:
            status = self._job._status()
        except FleetfitError:
            return  # the waiting loop raises this error
        if statuses.is_terminal(status):
            return  # the final output follows
        message = str((status.get("SecondaryStatusTransitions") or [{}])[-1].get("StatusMessage") or "")
        self.progress.stand(str(status["SecondaryStatus"]), message)
        if self.pane is not None:
            self.pane.refresh()
        elif self._stream is not None and is_terminal(self._stream):
            self._printer.status(" · ".join(self.progress.parts(time.time())))
        elif self.progress.stage != self._stage:
            self._printer.note(f"training job {self._job.name}: {self.progress.stage}")
            self._stage = self.progress.stage

    def hide(self) -> None:
        """Remove the terminal's status line before other output is printed."""
        if self._printer is not None:
            with self._going_on():
                self._printer.status("")

    def close(self) -> None:
        """Print the lines that the printer still holds back. The caller calls this method when it no longer waits."""
        if self._printer is not None:
            with contextlib.suppress(BrokenPipeError), self._going_on():
                self._printer.finish()

    @property
    def due(self) -> float | None:
        """Return the number of seconds until a held-back line has to be shown, or None if no line is held back."""
        return self._printer.due if self._printer is not None else None

    def message(self, text: str) -> None:
        """Print a message of fleetfit. If the logs are not shown, print the message to standard error."""
        with self._going_on():
            if self._printer is not None:
                self._printer.message(text)
                if self.pane is not None and not self._job._is_over():
                    self.pane.refresh()
            elif not self._silent:
                write_text(sys.stderr, text + "\n")

    def interrupted(self, text: str, short: str) -> None:
        """Show the effect of an interrupt.

        On a terminal or in a notebook, the effect is shown in the status line. The status line disappears when the job
        has ended.

        Args:
            text: The message for other streams.
            short: The short message for the status line.
        """
        self._interrupted = True
        if self.progress is not None:
            self.progress.interrupted = short
        if self.progress is None or self._stream is None or not (self.pane or is_terminal(self._stream)):
            self.message(text)
        self._shown_at = float("-inf")

    @contextlib.contextmanager
    def _going_on(self) -> Iterator[None]:
        try:
            yield
        except BrokenPipeError:
            raise
        except (OSError, ValueError) as error:
            stream = self._stream
            if isinstance(error, ValueError) and not (stream is not None and stream.closed):
                raise
            self.silence()
            said = error.strerror if isinstance(error, OSError) else str(error)
            text = f"fleetfit: the log is no longer shown ({str(said).rstrip('.')}). The job goes on.\n"
            with contextlib.suppress(OSError, ValueError):
                if stream is not sys.stderr:
                    write_text(sys.stderr, text)
                    self._silent = False

    _silent = False

    def silence(self) -> None:
        """Stop all output, because the reader has closed the stream or a write has failed."""
        self._reader = self._printer = self._stream = self.pipe = None
        self._silent = True

    def table(self) -> None:
        """Print the table with the job's result. In a notebook, the pane already contains the table."""
        stream = self._stream
        if stream is None or self.pane is not None:
            return
        from estimators.results import display

        columns = shutil.get_terminal_size().columns
        text = display.job_table(self._job.result(), colour=wants_colour(stream), columns=columns)
        with self._going_on():
            write_text(stream, text)


def told_interrupt(text: str) -> KeyboardInterrupt:
    """Return a KeyboardInterrupt for which a notebook shows only ``text``, and Python shows no traceback.

    The caller has already printed the message.

    The result is not an instance of a subclass, because an uncaught KeyboardInterrupt makes Python exit by SIGINT, and
    an uncaught exception of a subclass does not.
    """
    shorten_uncaught()
    error = KeyboardInterrupt(text)
    error._render_traceback_ = lambda: [text]  # type: ignore[attr-defined]  # the name that IPython asks for
    return error


class Wait:
    """The loop of one call of :meth:`TrainingJob.wait`, and its state."""

    def __init__(
        self,
        job: TrainingJob,
        output: JobDisplay,
        feed: EventFeed,
        interrupts: Interrupts,
        deadline: float | None,
    ) -> None:
        self._job = job
        self._output = output
        self._feed = feed
        self._interrupts = interrupts
        self._deadline = deadline
        self._heeded = 0  # number of interrupts that have been handled
        self._kill_at: float | None = None  # time at which the supervisor is killed if the job has not ended
        self._failed: BaseException | None = None  # the error to raise when the job has ended
        self._ping_at = time.monotonic() + _PING_SECONDS
        self._unanswered = 0

    def run(self) -> None:
        """Wait until the job has ended, or raise the errors that :meth:`TrainingJob.wait` describes."""
        while True:
            try:
                if self._interrupts.count > self._heeded:
                    self._heeded += 1
                    self._interrupted()
                if self._step():
                    break
            except KeyboardInterrupt:
                if self._job._tie is None:
                    raise
                self._interrupts.count += 1
            except BrokenPipeError as error:
                self._output.silence()
                if self._job._tie is None:
                    raise
                self._failed = self._failed or error
                self._stop(self._job._interrupt_grace(), "its output was closed")
        self._end_callbacks()
        self._job._reap()
        if self._failed is not None:
            raise self._failed
        if self._interrupts.count:
            text = f"training job {self._job.name}: {str(self._job.status).lower()}."
            with contextlib.suppress(BrokenPipeError):
                self._output.message(text)
                self._output.table()
            raise told_interrupt(text)

    def _step(self) -> bool:
        """Show new output.

        If the job is running, wait for more output, at most one second. Return whether the job has ended.
        """
        job, tie = self._job, self._job._tie
        if tie is not None:
            tie.drain()
        over = job._is_over()
        news = self._poll_feed(over)  # read the events first, because the display of the logs depends on them
        shown = self._output.show(final=over) or news
        if over:
            return True
        if shown:
            self._ping_at = time.monotonic() + _PING_SECONDS
        elif time.monotonic() >= self._ping_at:
            self._ping()
        now = time.monotonic()
        if self._deadline is not None and now >= self._deadline:
            raise TimeoutError(f"training job {job.name!r} is still {job.status} ({job.secondary_status}).")
        if self._kill_at is not None and now >= self._kill_at:
            self._output.message(f"training job {job.name} has not stopped in time: fleetfit ends its processes.")
            self._kill()
        if shown:
            self._interrupts.wait(_BREATH_SECONDS, watch=self._output.pipe)
        pause = _TIED_POLL_SECONDS if tie is not None else _POLL_SECONDS
        for moment in (self._deadline, self._kill_at):
            if moment is not None:
                pause = min(pause, max(0.0, moment - now))
        if (due := self._output.due) is not None:
            pause = min(pause, due)
        if tie is not None and not tie.ended:
            self._interrupts.wait(pause, tie.fileno(), watch=self._output.pipe)
        else:
            # The supervisor has closed the connection and is about to exit, so poll at short intervals.
            self._interrupts.wait(min(pause, _BREATH_SECONDS) if tie is not None else pause, watch=self._output.pipe)
        return False

    def _poll_feed(self, over: bool) -> bool:
        """Pass new events to the callbacks. Return whether there were new events.

        If a callback raises an exception and the job is tied to this process, stop the job. :meth:`run` raises the
        exception after the job's end and the calls of ``on_end``. If the job is not tied, raise the exception at once.
        The job then continues.
        """
        try:
            return self._feed.poll()
        except (KeyboardInterrupt, BrokenPipeError):
            raise
        except BaseException as error:
            if self._job._tie is None and not over:
                raise  # the job continues
            self._failed = self._failed or error
            self._feed.mute()
            if not over:
                self._stop(self._job._interrupt_grace(), "its caller failed")
            return True

    def _end_callbacks(self) -> None:
        """Pass the last events to the callbacks, and call ``on_end`` of each callback.

        If a callback raises an exception, :meth:`run` raises it later.
        """
        try:
            self._feed.end()
        except KeyboardInterrupt:
            if self._job._tie is None:
                raise
            self._interrupts.count += 1
        except BaseException as error:  # noqa: BLE001 - run() raises it
            if self._failed is not None:
                error.__context__ = self._failed
            self._failed = error

    def _ping(self) -> None:
        """Check that the supervisor responds. The caller does this if the job has had no new output for a while.

        If the supervisor has not responded to three pings in a row and the job is tied to this process, kill the
        supervisor.

        Raises:
            JobUnreachableError: the supervisor has not responded to three pings in a row, and the job is not tied to
                this process. Or the supervisor responded with an error.
        """
        job = self._job
        self._ping_at = time.monotonic() + _PING_SECONDS
        try:
            answer = ipc_client.request(job.record, {"op": "ping"})
        except JobUnreachableError:
            self._unanswered += 1
            job._ensure_followed()
        else:
            self._unanswered = 0
            if not answer.get("ok"):
                raise JobUnreachableError(f"training job {job.name}: {answer.get('error')}")
        if self._unanswered < _PINGS or job._is_over():
            return
        text = f"the supervisor of training job {job.name} (pid {job._supervisor_pid()}) does not answer"
        if job._tie is None:
            raise JobUnreachableError(f"{text}: the process is suspended (SIGSTOP), or the machine is overloaded.")
        self._output.message(f"{text}: fleetfit ends this process and the job.")
        self._kill()

    def _interrupted(self) -> None:
        job = self._job
        if job._tie is None:
            bill = " on SageMaker and is billed" if job.lives_elsewhere else ""
            bill = f" at {place}" if (place := job.dispatcher) is not None else bill
            text = f"training job {job.name} continues{bill}; job.stop() or `fleetfit stop {job.name}` ends the job."
            with contextlib.suppress(BrokenPipeError):
                self._output.message(text)
            raise told_interrupt(text)
        if self._heeded == 1:
            grace = job._interrupt_grace()
            self._stop(grace, "interrupted by the user")
            self._output.interrupted(
                f"stopping training job {job.name}: the script has {grace:g} s to save. Interrupt again to end the "
                "job at once.",
                f"stopping: {grace:g} s to save; interrupt again to end the job at once",
            )
        elif self._heeded == 2:
            self._stop(0.0, "interrupted twice by the user")
            self._output.interrupted(f"ending training job {job.name} at once.", "ending the job at once")
        else:
            self._kill_at = time.monotonic()

    def _stop(self, grace: float, reason: str) -> None:
        self._kill_at = time.monotonic() + grace + ENDING_SECONDS
        tie = self._job._tie
        if tie is None or tie.ended or not tie.send(ipc_client.stop_message(grace, reason)):
            # The message was not sent: the supervisor is exiting already, or does not read. If the job has not ended
            # after this time, kill the supervisor and close the connection.
            self._kill_at = time.monotonic() + ENDING_SECONDS

    def _kill(self) -> None:
        """Kill the supervisor if this process started it, and close the connection to the supervisor."""
        self._kill_at = None
        job = self._job
        if job._process is not None and job._process.poll() is None:
            os.kill(job._process.pid, signal.SIGKILL)
        if job._tie is not None:
            job._tie.close()


def _pipe_of(stream: IO[str] | None) -> int | None:
    """Return the descriptor of a stream that is a pipe or socket, or None for any other stream."""
    if stream is None or in_jupyter(stream):
        return None
    try:
        descriptor = stream.fileno()
        mode = os.fstat(descriptor).st_mode
    except (OSError, ValueError, AttributeError):
        return None
    return descriptor if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else None
