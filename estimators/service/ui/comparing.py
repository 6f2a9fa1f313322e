"""Create the page that compares jobs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from estimators.job.errors import ConfigurationError
from estimators.records.provenance import read
from estimators.records.record import JobRecord
from estimators.results import saving
from estimators.results.comparison.comparison import Comparison, Group
from estimators.results.html import render
from estimators.results.result import Result
from estimators.service.ui.curves import Curves, of_result

#: The maximum number of jobs in a comparison.
MOST = 20
#: The table of differences has at most four times this number of rows.
_PACKAGES = 100


def results(names: Sequence[str], home: Path | None) -> dict[str, tuple[JobRecord, Result]]:
    """Return the results of jobs, by name. A name that is given twice counts once.

    Raises:
        JobNotFoundError: a job does not exist.
        ConfigurationError: there are more than 20 jobs.
    """
    chosen = list(dict.fromkeys(names))
    if len(chosen) > MOST:
        raise ConfigurationError(f"{len(chosen)} jobs are too many to compare at once: choose {MOST} or fewer.")
    records = [JobRecord.open(name, home) for name in chosen]
    return {record.name: (record, saving.result_of(record)) for record in records}


def html(names: Sequence[str], home: Path | None) -> str:
    """Return the page that compares the given jobs."""
    found = results(names, home)
    comparison = Comparison([Group(name, (result,)) for name, (_, result) in found.items()])
    head, rows = comparison.rows() if found else ([], [])
    return render(
        "service/ui/templates/compare",
        names=list(found),
        head=["job", *head[1:]],
        rows=rows,
        statuses=[result.status for _, result in found.values()],
        notes=[*comparison.warnings, *(comparison.notes() if found else ())],
        differences=differences({name: _facts(*pair) for name, pair in found.items()}),
    )


def series(names: Sequence[str], home: Path | None) -> Curves:
    """Return the curves of the given jobs. The label of each line contains the job's name."""
    together: Curves = {}
    for name, (_, result) in results(names, home).items():
        for metric, lines in of_result(result, name).items():
            together.setdefault(metric, {}).update(lines)
    return together


def differences(facts: Mapping[str, Mapping[str, str]]) -> list[tuple[str, list[str]]]:
    """Return the facts that differ between jobs.

    Args:
        facts: The values of each job's facts, by the job's name and the fact's name.

    Returns:
        The name of each fact that differs, and the fact's value for each job.
    """
    names = dict.fromkeys(name for one in facts.values() for name in one)
    rows = [(name, [one.get(name, "–") for one in facts.values()]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1][: 4 * _PACKAGES]


def _facts(record: JobRecord, result: Result) -> dict[str, str]:
    """Return the facts about a job that affect its result: settings, data, code, installed packages and machine."""
    provenance = read(record.path)
    git: Mapping[str, Any] = provenance.get("git") or {}
    found = {
        "strategy": result.strategy or "none",
        "instance type": result.instance_type or "–",
        "hosts": str(result.hosts),
        "processes per host": str(result.processes_per_host),
        **{
            f"hyperparameter {name}": _text(value)
            for name, value in result.hyperparameters.items()
            if name != "model_dir"  # contains the job's name, so it always differs
        },
        **{f"channel {name}": str(one.get("digest") or one.get("uri")) for name, one in result.data.items()},
        "commit": str(git.get("commit") or "–"),
        "not committed": f"{len(git['diff'].splitlines())} lines" if git.get("diff") else "–",
        **{name: _text(value) for name, value in (provenance.get("software") or {}).items()},
        **{f"machine {name}": _text(value) for name, value in (provenance.get("machine") or {}).items()},
    }
    packages = (provenance.get("packages") or {}).get("freeze") or ()
    for line in packages:
        name, _, version = str(line).partition("==")
        found[f"package {name}"] = version or str(line)
    return found


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)
