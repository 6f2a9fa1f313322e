"""Report the interruptions of a spot host that the instance metadata service announces (``agent notices``).

    python -m container agent notices --imds http://169.254.169.254 --every 5

Each notice is printed once, as a line of JSON on standard output. ``{"notice": "interruption", "in_s": 118.2}`` means
that the host will be interrupted in that many seconds. ``{"notice": "rebalance"}`` means that the host may be
interrupted. ``{"notice": "silence", "text": …}`` means that the metadata service has not answered several successive
requests. The program exits when its standard input ends. The program uses only the second version of the metadata
service (IMDSv2), which requires a token.
"""

from __future__ import annotations

import datetime
import http.client
import json
import os
import select
import sys
import time
from collections.abc import Sequence
from typing import Any

from container.agent.words import Words

#: How long a token is valid, and the time limit for a response, in seconds.
_TOKEN_S, _TIMEOUT_S = 21_600, 2.0
_TOKEN = "/latest/api/token"
#: Paths about interruptions of a spot instance; each returns 404 until there is a notice.
_INTERRUPTION = "/latest/meta-data/spot/instance-action"
_REBALANCE = "/latest/meta-data/events/recommendations/rebalance"
#: Number of requests without an answer after which the silence is reported.
_SILENT_AFTER = 3
#: How long before the interruption a notice usually arrives, in seconds; used if a notice has no valid time.
_NOTICE_S = 120.0


class Metadata:
    """A client of EC2's instance metadata service.

    Args:
        url: The address of the metadata service: ``http://HOST[:PORT]``.
    """

    def __init__(self, url: str) -> None:
        self._place = url.partition("://")[2].rstrip("/")
        self._token = ""

    def read(self, path: str) -> str | None:
        """Return the text of a document. Return None if the document does not exist.

        Raises:
            OSError: the metadata service does not answer, or answers with an error.
        """
        if not self._token:
            self._renew()
        status, text = self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
        if status == 401:  # the token has expired
            self._renew()
            status, text = self._ask("GET", path, {"X-aws-ec2-metadata-token": self._token})
        if status == 404:
            return None
        if status != 200:
            raise OSError(f"{path}: status {status}")
        return text

    def _renew(self) -> None:
        status, text = self._ask("PUT", _TOKEN, {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)})
        if status != 200:
            raise OSError(f"{_TOKEN}: status {status}")
        self._token = text.strip()

    def _ask(self, method: str, path: str, headers: dict[str, str]) -> tuple[int, str]:
        connection = http.client.HTTPConnection(self._place, timeout=_TIMEOUT_S)
        try:
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read(65536).decode("utf-8", "replace")
        except http.client.HTTPException as error:
            raise OSError(f"{path}: {error!r}") from error
        finally:
            connection.close()


class Notices:
    """A poller of the instance metadata service that returns each notice only once.

    Args:
        metadata: The machine's instance metadata service.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._said: set[str] = set()
        self._unanswered = 0

    def look(self, now: float) -> list[dict[str, Any]]:
        """Query the metadata service once, and return the new notices.

        Args:
            now: The current time, in seconds since the epoch.
        """
        try:
            action, rebalance = self._metadata.read(_INTERRUPTION), self._metadata.read(_REBALANCE)
        except OSError as error:
            self._unanswered += 1
            if self._unanswered == _SILENT_AFTER:
                return [{"notice": "silence", "text": f"the instance metadata service does not answer ({error})"}]
            return []
        self._unanswered = 0
        found = []
        if action is not None:
            found += self._once({"notice": "interruption", "in_s": round(_seconds(action, now), 1)})
        if rebalance is not None:
            found += self._once({"notice": "rebalance"})
        return found

    def _once(self, notice: dict[str, Any]) -> list[dict[str, Any]]:
        if notice["notice"] in self._said:
            return []
        self._said.add(notice["notice"])
        return [notice]


def _seconds(action: str, now: float) -> float:
    """Return the number of seconds until the host is interrupted.

    Return 120, the usual number of seconds, if the notice's time cannot be read or is not plausible.
    """
    try:
        moment = datetime.datetime.fromisoformat(str(json.loads(action)["time"]).replace("Z", "+00:00"))
        seconds = moment.timestamp() - now
    except (ValueError, KeyError, TypeError):
        return _NOTICE_S
    return seconds if 0 <= seconds <= _NOTICE_S else _NOTICE_S


def main(argv: Sequence[str]) -> int:
    """Print notices until standard input ends.

    Returns:
        0 on success. 2 if the command line is invalid.
    """
    try:
        words = Words(argv, ("--imds", "--every"))
        url, every = words.one("--imds"), float(words.one("--every"))
    except ValueError as error:
        print(f"{error}; usage: python -m container agent notices --imds URL --every SECONDS", file=sys.stderr)
        return 2
    notices = Notices(Metadata(url))
    while True:
        for notice in notices.look(time.time()):
            print(json.dumps(notice), flush=True)
        ready, _, _ = select.select([0], [], [], every)
        if ready and not os.read(0, 4096):
            return 0
