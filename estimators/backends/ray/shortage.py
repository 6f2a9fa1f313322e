"""Describe which resources a Ray cluster lacks for pending hosts. The functions are pure and need only the standard
library.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

#: The keys of Ray's ``runtime_env`` that give workers another Python.
_OWN_PYTHON = ("conda", "container", "image_uri", "pip", "py_executable", "uv")

#: The free resources of each node, by id.
Free = dict[str, dict[str, float]]


def reason(
    asked: Mapping[str, Any],
    count: int,
    nodes: Sequence[dict[str, Any]],
    *,
    taken: int,
    free: Free | None,
    available: Mapping[str, float],
) -> str:
    """Return a description of the missing resources.

    Args:
        asked: The request: ``bundle``, ``strategy``, ``labels``, ``apart`` and ``group``.
        count: The number of waiting hosts.
        nodes: The live nodes from ``ray.nodes()``.
        taken: The number of nodes that the job has.
        free: The free resources of each node. None if they are unknown.
        available: The free resources of the cluster. They are shown if ``free`` is None.
    """
    bundle = asked["bundle"]
    shown = _amounts(bundle)
    if asked["group"]:
        return f"placement group {asked['group']} is not ready yet"
    nodes = [node for node in nodes if _has_labels(node, asked["labels"])]
    wanted = f"{count} × {{{shown}}} ({asked['strategy']})" if count > 1 else f"{{{shown}}}"
    if asked["labels"] and not nodes:
        return f"Ray has no node yet with the labels {asked['labels']}; the job waits for {wanted}"
    able = [node for node in nodes if _fits(bundle, node["Resources"])]
    apart = count + taken if asked["apart"] else 1
    most = {name: max((node["Resources"].get(name, 0) for node in nodes), default=0) for name in bundle}
    lacking = [
        f"{name} {amount:g} (the largest node has {most[name]:g})"
        for name, amount in bundle.items()
        if most[name] < amount
    ]
    if lacking:
        return f"Ray has no node yet with {', '.join(lacking)}; the job waits for {wanted}"
    if len(able) < apart:
        return f"Ray has {len(able)} of {apart} nodes for {wanted}; the job waits until more nodes join the cluster"
    if free is None:
        return f"the job waits for {wanted}; available now: {_amounts(available)}"
    room = [node for node in able if _fits(bundle, free.get(node["NodeID"], {}))]
    return f"the job waits for {wanted}: {len(room)} of {len(able)} nodes of that size have enough free resources"


def split_python(python: str, runtime_env: Mapping[str, Any]) -> str | None:
    """Return why Ray cannot start a worker on a node because of the path of the node's Python. Return None if the path
    causes no problem.

    Ray inserts the path into a shell command without quotes. If the command fails, Ray tries five times for a minute
    each and gives no reason.

    Args:
        python: The path of the Python interpreter with which Ray was started on the node.
        runtime_env: Ray's ``runtime_env``.
    """
    if shlex.quote(python) == python or any(name in runtime_env for name in _OWN_PYTHON):
        return None
    return (
        f"Ray cannot start a worker with the node's Python, {python}: Ray passes this path to a shell without "
        "quotes. Start Ray there with a Python whose path has no space, for example through a link to Python's "
        "environment: LINK/bin/python -m ray.scripts.scripts start"
    )


def _fits(bundle: dict[str, float], there: dict[str, float]) -> bool:
    return all(there.get(name, 0) >= amount for name, amount in bundle.items())


def _has_labels(node: dict[str, Any], labels: dict[str, str]) -> bool:
    """Return whether a node has the labels that a job requires. Label selectors with operators are ignored."""
    own = node.get("Labels") or {}
    plain = {name: value for name, value in labels.items() if not value.startswith(("!", "in("))}
    return all(own.get(name) == value for name, value in plain.items())


def _amounts(bundle: Mapping[str, float]) -> str:
    names = [name for name in bundle if not name.startswith(("node:", "bundle_group", "object_store"))]
    return ", ".join(f"{name}: {bundle[name]:g}" for name in sorted(names) if "_group_" not in name)


def line_of(error: BaseException) -> str:
    """Convert an error of Ray to one line. The line is the last line of a traceback, or the joined lines of any other
    text.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return lines[-1] if "Traceback" in str(error) else " ".join(lines)[:500]
