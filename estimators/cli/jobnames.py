"""What may be written for a job's name: the name, its beginning where only one job begins so, or ``last``."""

from __future__ import annotations

from collections.abc import Iterable

from estimators.cli import console
from estimators.job.errors import ConfigurationError, JobNotFoundError

#: The job that was created last.
LAST = "last"
#: What a command's help says of its argument.
HELP = f"a job's name, the beginning of its name, or `{LAST}`"

#: An error lists this many names.
_LISTED = 8


def resolve(text: str) -> str:
    """Return the name of the job that is meant, and say it on standard error where it was not written out.

    A text that no job on record begins with comes back as it is: it may be a job on SageMaker.

    Raises:
        JobNotFoundError: ``last``, and there is no job.
        ConfigurationError: several jobs begin so.
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
            more = f" and {len(begun) - _LISTED} more" if len(begun) > _LISTED else ""
            raise ConfigurationError(
                f"{len(begun)} jobs begin with {text!r}: {', '.join(begun[:_LISTED])}{more}. Write more of the name."
            )
        if not begun:
            return text
        found = begun[0]
    console.say(f"{text} is {found}.")
    return found


def resolve_all(texts: Iterable[str]) -> list[str]:
    """Return the names of all of the jobs that are meant, each once; see :func:`resolve`."""
    return list(dict.fromkeys(resolve(text) for text in texts))


def resolve_unless_path(text: str) -> str:
    """Return a path of a ``result.json`` as it is, and else what :func:`resolve` does."""
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
