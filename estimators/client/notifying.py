"""Define a callback that notifies the user when a job ends or stalls, a metric is NaN, or a loss diverges."""

from __future__ import annotations

import contextlib
import math
import os
import queue
import shlex
import shutil
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from container.contract import rules
from container.contract.names import cut, shown, suggests_arguments, unknown
from estimators.client.callbacks import Callback, Metric
from estimators.client.printing import say
from estimators.job import strict_json
from estimators.job.bounds import MAX_SECONDS
from estimators.job.errors import ConfigurationError

if TYPE_CHECKING:
    from container.contract.wire import Event
    from estimators.client.training_job import TrainingJob

#: Occasions for a notification.
OCCASIONS = ("completed", "failed", "stopped", "stalled", "nan", "diverged")

_POST_TIMEOUT_S = 10.0
_POST_ATTEMPTS = 3
_COMMAND_TIMEOUT_S = 60.0
#: Maximum time that the end of ``fit()`` waits for pending notifications, in seconds.
_PATIENCE_S = 20.0
#: A loss has diverged if this many successive values are higher than ``diverged`` times the lowest value so far.
_IN_A_ROW = 3
_REASON_LIMIT = 1000


@suggests_arguments
class NotifyCallback(Callback):
    """A callback that runs a command or sends a POST request when something happens to a job.

    The occasions are the end of the job, a stall of the job, a metric that is not a number, and a loss that diverges.

    The notification is a JSON object. Its member ``text`` is a sentence, as the webhooks of chat programs expect. The
    command reads the JSON from standard input. The command's environment contains the job's name (``FLEETFIT_JOB``) and
    the occasion (``FLEETFIT_OCCASION``). The URL receives the JSON in a POST request.

    A slow command or URL does not delay the job. After the job's end, ``fit()`` waits for pending notifications, at
    most 20 seconds, and then ends the command. If a notification fails, a message is printed and the job continues.

    Args:
        command: A program with its arguments, as a list.
        url: An http or https URL.
        on: The occasions to notify of, from :data:`OCCASIONS`. The default is all occasions.
        stall: The time without any event of the job after which the job counts as stalled, in seconds. With None,
            stalls are not detected.
        diverged: The factor for the detection of divergence. A loss is a metric with "loss" in its name. The loss has
            diverged if three successive values are higher than this factor times the lowest value so far. Values of 0
            or less are ignored. With None, divergence is not detected.

    Raises:
        ConfigurationError: an argument is wrong.
    """

    def __init__(
        self,
        command: Sequence[str] | None = None,
        url: str | None = None,
        *,
        on: Sequence[str] = OCCASIONS,
        stall: float | None = None,
        diverged: float | None = None,
    ) -> None:
        if command is None and url is None:
            raise ConfigurationError("NotifyCallback needs command=[…] (a program to run) or url=… (a URL to post to).")
        self._command = _checked_command(command)
        self._url = _checked_url(url)
        items = [on] if isinstance(on, str) else list(on)
        for item in items:
            if item not in OCCASIONS:
                raise ConfigurationError(unknown("NotifyCallback(on=…)", item, OCCASIONS))
        for name, value in (("stall", stall), ("diverged", diverged)):
            if value is not None:
                rules.above_0("a number above 0", MAX_SECONDS)(f"NotifyCallback({name}=…)", value)
        self._on = frozenset(items)
        self._stall = stall if "stalled" in self._on else None
        self._factor = diverged if "diverged" in self._on else None
        self._watches: dict[str, _Watch] = {}

    def on_event(self, job: TrainingJob, event: Event) -> None:
        """Restart the time after which the job counts as stalled. Reports of used resources do not restart the time.

        If the event reports that a metric is not a number, send a notification.
        """
        if event.kind == "resources":
            return  # hosts send these events even if their ranks do nothing
        self._watch(job).sign()
        if event.kind == "not_a_number":
            self._tell_once(job, "nan", f"metric {event.data.get('name')} is not a number")

    def on_metric(self, job: TrainingJob, metric: Metric) -> None:
        """Check a metric's value. If the value is not a number, or if a loss diverges, send a notification."""
        where = f" on rank {metric.rank}" if metric.rank is not None else ""
        if math.isnan(metric.value) or (math.isinf(metric.value) and "loss" in metric.name.lower()):
            self._tell_once(job, "nan", f"metric {metric.name} is {metric.value}{where}")
            return
        watch = self._watch(job)
        watch.metrics[metric.name] = metric.value
        if self._factor is not None and "loss" in metric.name.lower() and watch.losses.diverge(metric, self._factor):
            text = f"metric {metric.name} is {metric.value:g}{where}, more than {self._factor:g} times its lowest value"
            self._tell_once(job, "diverged", text)

    def on_end(self, job: TrainingJob) -> None:
        """Notify of the job's end, and wait until all notifications are sent, at most 20 seconds."""
        status = str(job.status)
        reason = job.describe().get("FailureReason") or ""
        text = f"training job {job.name}: {status}" + (f". {cut(str(reason), _REASON_LIMIT)}" if reason else "")
        watch = self._watch(job)
        if status.lower() in self._on:
            self._tell(job, status.lower(), text)
        watch.end(_PATIENCE_S)
        self._watches.pop(job.name, None)

    def _watch(self, job: TrainingJob) -> _Watch:
        if job.name not in self._watches:
            self._watches[job.name] = _Watch(self, job, self._stall)
        return self._watches[job.name]

    def stalled(self, job: TrainingJob, seconds: float) -> None:
        """Notify that the job has produced no event for the given number of seconds."""
        self._tell(job, "stalled", f"training job {job.name}: no sign of life for {seconds:.0f} s")

    def _tell_once(self, job: TrainingJob, occasion: str, text: str) -> None:
        watch = self._watch(job)
        if occasion in self._on and occasion not in watch.told:
            watch.told.add(occasion)
            self._tell(job, occasion, f"training job {job.name}: {text}")

    def _tell(self, job: TrainingJob, occasion: str, text: str) -> None:
        watch = self._watch(job)
        watch.news.put(
            {
                "text": text,
                "job": job.name,
                "occasion": occasion,
                "status": str(job.status),
                "time": time.time(),
                "metrics": dict(watch.metrics),
                "record": str(job.record.path),
            }
        )

    def send(self, news: dict[str, Any], watch: _Watch) -> None:
        """Pass a notification to the command and the URL.

        If the command or the request to the URL fails, print a message.
        """
        body = strict_json.dumps(news).encode()
        for way in (self._run, self._post):
            try:
                way(news, body, watch)
            except (OSError, ValueError, subprocess.SubprocessError) as error:
                if watch.gave_up:
                    return
                say(f"training job {news['job']} {_verb(news)}, but the notification was not sent: {_cause(error)}.")

    def _run(self, news: dict[str, Any], body: bytes, watch: _Watch) -> None:
        if self._command is None:
            return
        environment = {**os.environ, "FLEETFIT_JOB": news["job"], "FLEETFIT_OCCASION": news["occasion"]}
        process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment,
            start_new_session=True,
        )  # fmt: skip
        watch.command = process
        try:
            _, said = process.communicate(body, timeout=_COMMAND_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.communicate()
            raise
        finally:
            watch.command = None
        if process.returncode:
            tail = cut(" ".join(said.decode(errors="replace").split()), 200)
            raise OSError(f"{self._command[0]} exited with code {process.returncode}{': ' + tail if tail else ''}")

    def _post(self, news: dict[str, Any], body: bytes, watch: _Watch) -> None:
        if self._url is None:
            return
        request = urllib.request.Request(self._url, body, {"Content-Type": "application/json"}, method="POST")
        for attempt in range(1, _POST_ATTEMPTS + 1):
            try:
                with urllib.request.urlopen(request, timeout=_POST_TIMEOUT_S):
                    return
            except (OSError, ValueError) as error:
                refused = isinstance(error, urllib.error.HTTPError) and error.code < 500
                if refused or attempt == _POST_ATTEMPTS:
                    # Show only the host, because the URL may be a secret, such as the URL of a chat program's webhook.
                    host = urllib.parse.urlsplit(self._url).hostname
                    raise OSError(f"{host}: {getattr(error, 'reason', None) or type(error).__name__}") from None
                time.sleep(attempt)


class Losses:
    """The losses of a job, for deciding whether one of them has diverged."""

    def __init__(self) -> None:
        self._least: dict[tuple[str, int | None], float] = {}
        self._above: dict[tuple[str, int | None], int] = {}

    def diverge(self, metric: Metric, factor: float) -> bool:
        """Add a value of a loss, and return whether this loss has diverged.

        A loss has diverged if its last three values are above ``factor`` times its lowest value so far. Values of 0 or
        less are ignored.
        """
        if metric.value <= 0:
            return False
        key = (metric.name, metric.rank)
        least = self._least.get(key, math.inf)
        if metric.value < least:
            self._least[key] = metric.value
        self._above[key] = self._above.get(key, 0) + 1 if metric.value > max(factor, 1.0) * least else 0
        return self._above[key] >= _IN_A_ROW


class _Watch:
    """The state of the callback for one job, and the threads that detect stalls and send notifications."""

    def __init__(self, callback: NotifyCallback, job: TrainingJob, stall: float | None) -> None:
        self._callback = callback
        self._job = job
        self._heard = threading.Event()
        self._over = threading.Event()
        self.news: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.command: subprocess.Popen[bytes] | None = None
        self.gave_up = False
        self.told: set[str] = set()
        self.metrics: dict[str, float] = {}
        self.losses = Losses()
        self._sender = threading.Thread(target=self._send, name="notify", daemon=True)
        self._sender.start()
        if stall is not None:
            threading.Thread(target=self._look, args=(stall,), name="notify-stall", daemon=True).start()

    def sign(self) -> None:
        """Record that the job is alive."""
        self._heard.set()

    def end(self, patience: float) -> None:
        """Stop watching the job. Wait until the pending notifications are sent, at most ``patience`` seconds."""
        self._over.set()
        self._heard.set()
        self.news.put(None)
        self._sender.join(patience)
        if self._sender.is_alive():
            self.gave_up = True
            if (command := self.command) is not None:
                _kill(command)
            say(f"training job {self._job.name}: not all notifications were sent within {patience:g} s after its end.")

    def _send(self) -> None:
        while (news := self.news.get()) is not None and not self.gave_up:
            self._callback.send(news, self)

    def _look(self, stall: float) -> None:
        silent = False
        while not self._over.is_set():
            heard = self._heard.wait(stall)
            self._heard.clear()
            if heard:
                silent = False
            elif not silent and not self._over.is_set():
                silent = True
                self._callback.stalled(self._job, stall)


def _kill(command: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(command.pid, signal.SIGKILL)


def parse(text: str) -> NotifyCallback:
    """Return the callback for the value of the command-line option ``--notify``: a URL or a shell command.

    Raises:
        ConfigurationError: the text is neither a URL nor a valid command.
    """
    if text.startswith(("http://", "https://")):
        return NotifyCallback(url=text)
    try:
        return NotifyCallback(command=shlex.split(text))
    except ValueError as error:
        if isinstance(error, ConfigurationError):
            raise
        raise ConfigurationError(f"--notify {shown(text)} is neither a URL nor a valid command: {error}.") from None


def _checked_command(command: Any) -> list[str] | None:
    if command is None:
        return None
    if isinstance(command, str):
        raise ConfigurationError(
            f"NotifyCallback(command=…) must be a list of a program and its arguments. Write {shlex.split(command)}."
        )
    if not (words := rules.words()("NotifyCallback(command=…)", command)):
        raise rules.refuse("NotifyCallback(command=…)", "a list of strings that is not empty", command)
    if shutil.which(words[0]) is None:
        scheme = " URLs must begin with http:// or https://." if "://" in words[0] else ""
        raise ConfigurationError(f"NotifyCallback(command=…): there is no program {shown(words[0])}.{scheme}")
    return list(words)


def _checked_url(url: Any) -> str | None:
    if url is None:
        return None
    if not isinstance(url, str) or urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise ConfigurationError("NotifyCallback(url=…) must be an http:// or https:// URL.")
    if not urllib.parse.urlsplit(url).hostname:
        raise ConfigurationError("NotifyCallback(url=…) has no host.")
    return url


def _verb(news: dict[str, Any]) -> str:
    words = {"nan": "has a metric that is not a number", "diverged": "diverges", "stopped": "was stopped"}
    return words.get(news["occasion"], f"has {news['occasion']}")


def _cause(error: BaseException) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"the command took longer than {_COMMAND_TIMEOUT_S:.0f} s"
    return str(error).rstrip(".") or type(error).__name__
