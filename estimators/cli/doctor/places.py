"""Report the resources of the machine, and the missing software of each strategy and backend."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping

from container.system import machine as hardware
from container.system.machine import format_bytes
from estimators.cli.doctor.findings import ReportLine, Verdict
from estimators.job import fleets
from estimators.job.fleets import CONTAINERS, FAKE, GPU_CONTAINERS, PROCESSES, SAGEMAKER

#: Backends that `backends()` reports separately, or that need no line.
_KNOWN = (PROCESSES, CONTAINERS, GPU_CONTAINERS, FAKE, SAGEMAKER)


def machine(environment: Mapping[str, str]) -> tuple[ReportLine, ...]:
    """Report cores, memory, GPUs, kept processes and the free disk space for job records."""
    from estimators.backends.hosts import kept
    from estimators.records.record import jobs_folder

    facts = hardware.facts()
    cores = f"{facts.cores} cores"
    if facts.cores != facts.cores_of_machine:
        cores = f"{facts.cores} of {facts.cores_of_machine} cores (limited by the CPU affinity or a control group)"
    folder = jobs_folder()
    free = hardware.free_bytes(folder)
    low = free is not None and free < 1_000_000_000
    gpus = hardware.gpus(environment)
    return (
        ReportLine.info("CPU", f"{cores}, {hardware.cpu_model()}"),
        ReportLine.info(
            "Memory", f"{format_bytes(facts.memory_available_bytes)} of {format_bytes(facts.memory_bytes)} available"
        ),
        ReportLine.info("GPU", ", ".join(gpus) or "none"),
        *(
            ReportLine.info(
                "Kept",
                f"reused by the next job: {one}",
                "This process ends after its keep-alive period, when memory is short, or when you run "
                "`fleetfit clean`.",
            )
            for one in kept.find(folder.parent)
        ),
        ReportLine(
            "Disk",
            Verdict.WARNING if low else Verdict.INFO,
            f"{format_bytes(free) if free is not None else 'unknown'} free for job records ({folder})",
            "Remove old jobs with `fleetfit clean --free 5G`, or set FLEETFIT_HOME to a folder on another disk."
            if low
            else None,
        ),
    )


def strategies(
    tensorflow: ReportLine, torch: ReportLine, keras: ReportLine, openmpi: ReportLine, horovod: ReportLine
) -> tuple[ReportLine, ...]:
    """Report whether each strategy can be used, and name the missing software."""
    from container.contract.strategies import STRATEGIES

    needs = {
        "mpi": (openmpi, horovod),
        "parameter_server": (tensorflow, keras),
        "collective_all_reduce": (tensorflow,),
        "mirrored": (tensorflow,),
        "elastic_horovod": (horovod,),
        "torch_distributed": (torch,),
        "elastic_torch_distributed": (torch,),
    }
    findings = [ReportLine.ok("none", "one process per host, any script")]
    for strategy in STRATEGIES:
        lacking = [need for need in needs.get(strategy.name, ()) if need.state in (Verdict.MISSING, Verdict.ABSENT)]
        if not lacking:
            findings.append(ReportLine.ok(strategy.name, "ready"))
            continue
        text = "; ".join(f"{need.name}: {need.text}" for need in lacking)
        if strategy.name == "mpi" and openmpi.state is not Verdict.MISSING:
            text += "; MPI programs that do not use Horovod work"
        remedies = dict.fromkeys(need.remedy for need in lacking if need.remedy is not None)
        remedy = " ".join(remedies) or None
        # If all missing software belongs to a framework that is not in use, the strategy is not needed.
        unwanted = all(need.state is Verdict.ABSENT for need in lacking)
        state = Verdict.ABSENT if unwanted else Verdict.MISSING
        findings.append(ReportLine(strategy.name, state, text, remedy))
    return tuple(findings)


def backends(environment: Mapping[str, str], found: Mapping[str, str]) -> tuple[ReportLine, ...]:
    """Report whether each backend can be used, and name the missing software.

    Args:
        environment: The environment variables.
        found: A mapping from installed packages to their versions.
    """
    findings = _asked([PROCESSES])
    engine = _containers(environment, found)
    for name in (CONTAINERS, GPU_CONTAINERS):
        if name == GPU_CONTAINERS and engine.state is Verdict.OK and not hardware.gpus(environment):
            findings.append(ReportLine.absent(name, "there is no GPU"))
        else:
            findings.append(dataclasses.replace(engine, name=name, text=f"containers, Docker: {engine.text}"))
    findings.append(_sagemaker(environment))
    findings += _asked(name for name in fleets.names() if name not in _KNOWN)
    return tuple(findings)


def ssh_hosts() -> list[ReportLine]:
    """Report the machines that jobs reach by ssh, and the problems of each machine."""
    from estimators.backends.ssh import checking
    from estimators.backends.ssh.machines import SshOptions
    from estimators.cli.hosts import lines
    from estimators.job.errors import ConfigurationError

    options = SshOptions.of({})
    try:
        machines = options.machines()
    except ConfigurationError as error:
        return [ReportLine.missing("hosts", str(error))]
    findings = []
    for report in checking.check(options.settings(), machines) if machines else ():
        first, *_ = lines([report])
        warnings = report.warnings()
        state = Verdict.OK if not warnings else Verdict.MISSING if report.problem else Verdict.WARNING
        text = "; ".join(warnings) or first.partition(report.machine.name)[2].strip()
        findings.append(ReportLine(report.machine.name, state, text))
    return findings or [ReportLine.info("hosts", "none; `fleetfit hosts add` adds hosts")]


def _asked(names: Iterable[str]) -> list[ReportLine]:
    """Report the results of the checks that the named backends themselves define."""
    from estimators.backends import load

    return [
        ReportLine(
            found.name,
            {True: Verdict.OK, False: Verdict.MISSING, None: Verdict.INFO}[found.ok],
            found.text,
            found.remedy or None,
        )
        for backend in map(load, names)
        for found in backend.diagnose()
    ]


def _containers(environment: Mapping[str, str], found: Mapping[str, str]) -> ReportLine:
    """Report whether a container engine answers and whether Docker's Python SDK is installed."""
    engine = docker_engine(environment)
    if "docker" in found:
        return engine
    text = f"{engine.text}; Docker's Python SDK, which makes and pushes images, is not installed"
    remedy = " ".join(filter(None, (engine.remedy, "Docker's Python SDK: `fleetfit install docker`.")))
    state = Verdict.WARNING if engine.state is Verdict.OK else engine.state
    return dataclasses.replace(engine, state=state, text=text, remedy=remedy)


def _sagemaker(environment: Mapping[str, str]) -> ReportLine:
    """Report the region and the endpoint of the AWS configuration. No request is sent to AWS."""
    import boto3
    from botocore.exceptions import BotoCoreError

    try:
        session = boto3.session.Session()
        region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or session.region_name
    except BotoCoreError as error:
        return ReportLine.info("ml.*", f"Amazon SageMaker: {error}")
    if region is None:
        return ReportLine.info("ml.*", "Amazon SageMaker: no region is configured (AWS_REGION)")
    endpoint = environment.get("AWS_ENDPOINT_URL_SAGEMAKER") or environment.get("AWS_ENDPOINT_URL")
    place = f"{region}, at {endpoint}" if endpoint else region
    return ReportLine.info("ml.*", f"Amazon SageMaker in {place}; not checked with AWS")


def docker_engine(environment: Mapping[str, str] = os.environ) -> ReportLine:
    """Report whether a Docker-compatible engine answers on its socket."""
    from estimators.backends.images.engine import ImageEngine
    from estimators.backends.images.errors import EngineError

    engine = ImageEngine(environment)
    if not engine.address.startswith("unix://"):
        return ReportLine.info("Docker", f"at {engine.address}; not checked")
    try:
        answer = engine.ask("answer", "GET", "/version", timeout=2.0)
    except EngineError as error:
        text, _, remedy = " ".join(str(error).split()).partition(". ")  # an answer may have line breaks
        remedy = remedy or "Restart the engine, or set DOCKER_HOST to the engine's socket."
        return ReportLine.missing("Docker", text.rstrip(".: "), remedy)
    except ValueError:
        answer = None
    if not isinstance(answer, dict) or "ApiVersion" not in answer:
        text = f"{engine.address} is not a container engine's socket"
        return ReportLine.missing("Docker", text, "Set DOCKER_HOST to the engine's socket.")
    return ReportLine.ok("Docker", f"running ({engine.address.removeprefix('unix://')})")
