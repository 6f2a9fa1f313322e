"""Create the page of one job: convert the data in the job's record to values for the page's template."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterable, Mapping
from typing import Any

from container.contract.texts import map_texts
from container.contract.wire import Event
from estimators.job.errors import FleetfitError
from estimators.job.fleets import capabilities
from estimators.job.log_redaction import text_mask
from estimators.job.request import JobOptions, TrainingJobSpec
from estimators.records import status as statuses
from estimators.records.elastic_events import Restores, number, words
from estimators.records.record import JobRecord
from estimators.results import page, saving
from estimators.results.html import render
from estimators.results.result import Result
from estimators.results.summary import bytes_text, number_text, seconds_text
from estimators.service.ui import files, timeline
from estimators.service.ui.following import LEVELS
from estimators.service.ui.text import when

#: The maximum number of listed changes of the job's hosts. The latest changes are listed.
_TOLD = 200
#: The maximum number of listed checkpoints. The newest checkpoints are listed.
_CHECKPOINTS = 50
#: The maximum number of characters of the commands on the page. `fleetfit describe --reproduce` shows all commands.
_SCRIPT = 200_000

_KINDS = (*timeline.KINDS, "checkpoint", "restored", "state_lost")


def html(record: JobRecord, *, token: str, verified: Mapping[str, str | None] | None) -> str:
    """Return the page of a job.

    Args:
        record: The job's record.
        token: The token of the page's forms.
        verified: A description of the damage of each checkpoint, by the checkpoint's name. The description is None for
            an intact checkpoint. If ``verified`` itself is None, the checkpoints were not verified yet.
    """
    status = record.read_status()
    result = saving.result_of(record)
    mask = text_mask(record.read_request())
    known = [dataclasses.replace(event, data=map_texts(event.data, mask)) for event in record.events(*_KINDS)]
    created = float(status.get("CreationTime") or 0.0)
    over = statuses.is_terminal(status)
    phases = timeline.phase_lanes(known, created)
    hosts = timeline.host_lanes(known, created, float(status.get("LastModifiedTime") or 0.0) if over else time.time())
    failure = statuses.failure_of(status)
    own = status.get(statuses.OWN, {})
    membership = [host for host in own.get("hosts") or () if host.get("state") not in ("gone", "spare")]
    taken, more = files.listed(record)
    return render(
        "service/ui/templates/job",
        name=record.name,
        token=token,
        status=result.status,
        over=over,
        can_resume=result.status in ("Failed", "Stopped") and not _runs_elsewhere(record),
        can_rerun=not _runs_elsewhere(record),
        membership=[] if over else membership,
        secondary="" if result.secondary_status == result.status else result.secondary_status,
        pending=_pending(status),
        failure=failure.summary() if failure is not None else result.failure_reason or "",
        hints=failure.hints if failure is not None else (),
        traceback=failure.detail() if failure is not None else "",
        warnings=dict.fromkeys((*(own.get("warnings") or ()), *result.warnings)),
        levels=LEVELS,
        facts=_facts(result),
        metrics=[(name, number_text(value)) for name, value in result.final_metrics.items()],
        ranks=[(str(rank.rank), rank.host, bytes_text(rank.peak_memory_bytes), page.end_text(rank))
               for rank in result.ranks],
        steps=[(when(step.get("StartTime")), str(step.get("Status")), str(step.get("StatusMessage") or ""))
               for step in status.get("SecondaryStatusTransitions") or []],
        phases=phases,
        phases_s=timeline.length(phases),
        phase_facts=[(name.replace("_", " "), name, seconds_text(took))
                     for name, took in result.phases.items() if took is not None],
        hosts=hosts,
        hosts_s=timeline.length(hosts),
        told=_told(known, created),
        place=result.checkpoints or "",
        kept=_checkpoints(known, record, created, verified),
        verified=verified is not None,
        files=taken,
        more_files=more,
        seconds_text=seconds_text,
    )  # fmt: skip


def _pending(status: Mapping[str, Any]) -> str:
    """Return what a pending job waits for. Return an empty text if the job is not pending."""
    steps = status.get("SecondaryStatusTransitions") or [{}]
    return str(steps[-1].get("StatusMessage") or "") if status.get("SecondaryStatus") == "Pending" else ""


def _runs_elsewhere(record: JobRecord) -> bool:
    """Return whether SageMaker or a dispatcher runs the job. The page cannot start such a job again.

    A dispatcher is a machine to which jobs are submitted.
    """
    request = record.read_request()
    kind = (request.get("ResourceConfig") or {}).get("InstanceType")
    return capabilities(kind).managed or record.read_options().get("dispatcher") is not None


def _facts(result: Result) -> list[tuple[str, str]]:
    rate = result.samples_per_second
    return [
        ("strategy", (result.strategy or "none").replace("_", " ")),
        ("where", f"{result.hosts} × {result.instance_type or '–'}, {result.processes} processes"),
        ("created", when(result.created)),
        *((("took", seconds_text(result.seconds)),) if result.seconds is not None else ()),
        ("attempts", str(result.attempts)),
        *((f"attempt before {number}", line) for number, line in enumerate(result.endings, 1)),
        *((("samples per second", number_text(rate)),) if rate else ()),
        *page.facts(result),
        *((("model", result.model_data),) if result.model_data else ()),
        *((f"hyperparameter {name}", str(value)) for name, value in result.hyperparameters.items()),
        *((f"channel {name}", str(data.get("uri"))) for name, data in result.data.items()),
    ]


def _told(events: Iterable[Event], created: float) -> list[tuple[str, str]]:
    """Return texts about the changes of the job's hosts, with the times of the changes."""
    found: list[tuple[str, str]] = []
    restores = Restores()
    for event in events:
        if event.kind == "restored" and not restores.begins(event):
            continue
        data, text = event.data, "; ".join(text for _, text in words(event))
        if event.kind in ("interrupted", "notice"):
            notice = _seconds(data, "notice_s" if "notice_s" in data else "seconds")
            text = f"{data.get('target') or data.get('name')} is interrupted with {notice} of notice"
        elif event.kind == "host_added":
            text = f"{data.get('name')} is started"
        elif event.kind in ("host_left", "host_lost"):
            text = f"{data.get('name')} " + (
                "has left" if event.kind == "host_left" else f"was lost: {data.get('reason')}"
            )
        if text:
            found.append((seconds_text(max(0.0, event.time_ns / 1e9 - created)), text))
    return found[-_TOLD:]


def _seconds(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    return seconds_text(float(value)) if isinstance(value, int | float) else "–"


def _checkpoints(
    events: Iterable[Event], record: JobRecord, created: float, verified: Mapping[str, str | None] | None
) -> list[tuple[str, str, str, str, str]]:
    """Return the newest checkpoints.

    Returns:
        For each checkpoint: the name, the epoch and step, the size, the time, and the result of the verification.
    """
    rows: dict[str, list[str]] = {}
    folder = files.checkpoint_folder(record)
    if folder is not None and folder.is_dir():
        with contextlib.suppress(OSError):  # not readable for this user
            names = sorted((path.name for path in folder.iterdir() if path.name[0] != "."), key=lambda n: (len(n), n))
            rows = {name: ["–", "–", "–", "not verified yet"] for name in names}
    for event in events:
        data, name = event.data, str(event.data.get("name"))
        row = rows.get(name)
        if event.kind != "checkpoint" or (row is None and folder is not None):
            continue
        if data.get("action") == "saved":
            at = seconds_text(max(0.0, event.time_ns / 1e9 - created))
            place = f"epoch {data.get('epoch')}, step {data.get('step')}"
            rows[name] = [place, bytes_text(number(data, "bytes")), at, "not verified yet"]
        elif row is not None and data.get("action") == "restored":
            row[3] = f"verified when attempt {event.attempt + 1} resumed from it"
        elif row is not None and data.get("action") == "skipped":
            row[3] = f"damaged: {data.get('reason')}"
    for name, damage in (verified or {}).items():
        if name in rows:
            rows[name][3] = "verified: every byte is unchanged" if damage is None else f"damaged: {damage}"
    newest = [(name, *row) for name, row in reversed(rows.items())][:_CHECKPOINTS]
    return [(name, place, size, at, text) for name, place, size, at, text in newest]


def plan_html(record: JobRecord) -> str:
    """Return the page of a job's plan. The page shows the processes on each host, as `fleetfit plan` does."""
    from estimators.client.planning import plan_cluster

    try:
        spec = TrainingJobSpec.from_request(record.read_request())
        options = JobOptions.from_dict(record.read_options())
        text = plan_cluster(spec, options, home=record.home).text()
    except (FleetfitError, OSError, ValueError) as error:
        text = f"The plan cannot be made here: {error}"
    return render("service/ui/templates/text", name=record.name, title="Plan", parts=[("", text)])


def provenance_html(record: JobRecord) -> str:
    """Return the page with the provenance of a job, and with the commands that run the job again."""
    from estimators.client.functions import values
    from estimators.job.secrets import mask_request
    from estimators.records.provenance import read, reproduce

    facts = read(record.path)
    parts: list[tuple[str, str]] = []
    if not facts:
        parts.append(("", "Nothing was recorded."))
    else:
        git, caller = facts.get("git") or {}, facts.get("caller") or {}
        about = [
            ("started by", caller.get("command") or caller.get("notebook")), ("in", caller.get("cwd")),
            ("commit", git.get("commit")), ("branch", git.get("branch")), ("repository", git.get("remote")),
            ("python", (facts.get("python") or {}).get("version")),
            *((f"{name}", version) for name, version in (facts.get("software") or {}).items()),
            *((f"{name}", value) for name, value in (facts.get("machine") or {}).items()),
        ]  # fmt: skip
        parts.append(("", "\n".join(f"{name}: {value}" for name, value in about if value)))
        request = mask_request(record.read_request())
        script = reproduce.script(record.name, facts, request=request, function=values.is_function(record))
        cut = "\n… `fleetfit describe --reproduce` shows all of it" if len(script) > _SCRIPT else ""
        parts.append(("Run it again", script[:_SCRIPT] + cut))
    mask = text_mask(record.read_request())
    return render(
        "service/ui/templates/text", name=record.name, title="Provenance",
        parts=[(title, mask(text)) for title, text in parts],
    )  # fmt: skip


def series(record: JobRecord, kind: str) -> dict[str, Any]:
    """Return the curves of a job.

    Args:
        record: The job's record.
        kind: The source of the metrics: ``script`` or ``system``.

    Returns:
        For each metric and rank: a list of times in seconds since the job's creation, and a list of values. A value is
        None if it is not a finite number.
    """
    from estimators.service.ui.curves import of_resources, of_result

    if kind == "script":
        return of_result(saving.result_of(record))
    created = float(record.read_status().get("CreationTime") or 0.0)
    return of_resources(record.events("resources"), created)
