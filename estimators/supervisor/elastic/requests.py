"""Carry out the requests that clients send to an elastic job's supervisor.

The requests are ``hosts``, ``add_hosts``, ``remove_host``, ``interrupt`` and ``kill_rank``.
"""

from __future__ import annotations

import math
import signal
from typing import Any

from estimators.supervisor.elastic.controller import ElasticController

OPERATIONS = ("hosts", "add_hosts", "remove_host", "interrupt", "kill_rank")


def answer(controller: ElasticController, message: dict[str, Any]) -> dict[str, Any]:
    """Carry out a client's request, and return the response.

    Args:
        controller: The job's membership controller.
        message: ``{"op": …}`` with the arguments of the operation: ``count``, ``host``, ``notice_s``, ``rank`` or
            ``signal``.

    Returns:
        The response. If the request cannot be carried out, the response contains ``error``.
    """
    operation = message["op"]
    if operation == "hosts":
        return {"ok": True, "hosts": controller.roster.to_list()}
    if controller.over:
        return {"ok": False, "error": "the job's hosts cannot change any more, because the job is ending."}
    try:
        if operation == "add_hosts":
            count = message.get("count")
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise ValueError(f"add_hosts() takes a whole number of at least 1, got {count!r}.")
            return {"ok": True, "hosts": controller.hosts.add(count)}
        if operation == "kill_rank":
            controller.workers.signal(int(message["rank"]), int(message.get("signal", signal.SIGKILL)))
            return {"ok": True}
        host = str(message.get("host"))
        if operation == "remove_host":
            controller.hosts.remove(host)
        else:
            seconds = message.get("notice_s")
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
                raise ValueError(f"interrupt(notice_s=…) must be seconds, at least 0; got {seconds!r}.")
            controller.hosts.interrupt(host, float(seconds))
    except (ValueError, KeyError, TypeError) as error:
        return {"ok": False, "error": str(error)}
    return {"ok": True}
