"""Resolve a job's name on the command line: the whole name, a unique prefix, or ``last``."""

from __future__ import annotations

from collections.abc import Iterable

from container.contract.names import listed
from estimators.cli import console
from estimators.job.errors import ConfigurationError, JobNotFoundError

#: The text that means the job that was created last.
LAST = "last"
#: Help text of an argument that names a job.
HELP = f"a job's name, the beginning of its name, or `{LAST}`"

#: Maximum number of names in an error message.
_LISTED = 8


def resolve(text: str) -> str:
    """Return the full name of the job that a text means.

    The text is a full name, a unique prefix of a name, or ``last``. If the text is not the full name, the full name is
    printed to standard error. If the text is not a prefix of any recorded job, the text is returned unchanged, because
    the job may be on SageMaker.

    Raises:
        JobNotFoundError: the text is ``last``, but no job is on record.
        ConfigurationError: the text is a prefix of several jobs.
    """
    from estimators.records.record import job_names

    names = job_names()
    if text in names:
        return text
    if text == LAST:
        found = _newest(names)
    else:
        begun = [name for name in names if name.startswith(text)] if text else []
        if len(begun) > 1:
            raise ConfigurationError(
                f"{len(begun)} jobs begin with {text!r}: {listed(begun, _LISTED)}. Write more of the name."
            )
        if not begun:
            return text
        found = begun[0]
    console.say(f"{text} is {found}.")
    return found


def resolve_all(texts: Iterable[str]) -> list[str]:
    """Return the full names of several jobs, as :func:`resolve` does. Duplicates are removed."""
    return list(dict.fromkeys(resolve(text) for text in texts))


def resolve_unless_path(text: str) -> str:
    """Return the full name of a job, as :func:`resolve` does. Return the path of a ``result.json`` unchanged."""
    return text if "/" in text or text.endswith(".json") else resolve(text)


def _newest(names: Iterable[str]) -> str:
    from estimators.job.errors import RecordError
    from estimators.records.record import JobRecord

    created: list[tuple[float, str]] = []
    for name in names:
        try:
            created.append((float(JobRecord.open(name).read_status().get("CreationTime") or 0.0), name))
        except (JobNotFoundError, RecordError):
            continue  # removed meanwhile, or damaged
    if not created:
        raise JobNotFoundError(f"{LAST}: there are no jobs yet.")
    return max(created)[1]
