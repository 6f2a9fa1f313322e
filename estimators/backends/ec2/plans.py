"""Describe where a job on EC2 would run and what it would cost. The functions read prices from AWS, but start
nothing.
"""

from __future__ import annotations

import dataclasses

from estimators.backends.ec2.api import ERRORS, Ec2Api, failure_of
from estimators.backends.ec2.options import PREFIX, Ec2Options, instance_types
from estimators.backends.ec2.prices import Prices
from estimators.backends.hosts.provider import Placement
from estimators.job import instances
from estimators.job.errors import ConfigurationError
from estimators.job.request import JobOptions, TrainingJobSpec

#: Number of past days for which prices are shown, and maximum number of pools shown.
_DAYS, _SHOWN = 7.0, 8
_HOUR = 3600.0


def ssh_part(options: JobOptions, given: Ec2Options) -> JobOptions:
    """Return the run options with only those backend options that the ssh provider has."""
    part = {
        "python": given.python,
        "requirements": list(given.requirements) if given.requirements is not None else None,
        "caller_address": given.caller_address,
        "silence": given.silence,
        "hosts": [],
    }
    return dataclasses.replace(options, backend_options=part)


def placement(spec: TrainingJobSpec, options: JobOptions, ssh: Placement) -> Placement:
    """Return where a job would run. The notes of the result contain instance types, zones and prices.

    Args:
        spec: The job.
        options: The run options of the job.
        ssh: The placement that the ssh provider returns.
    """
    given = Ec2Options.of(options.backend_options)
    own, *_ = types = instance_types(spec, given)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    try:
        api = Ec2Api(region=given.region, profile=given.profile)
        known = api.prices(types, on_demand=given.on_demand_price, spot_days=_DAYS if spec.spot else 0.0)
        notes = describe(spec, given, types, known, api.region)
    except ConfigurationError as error:
        warnings = (f"the price of the job is unknown: {error}",)
    except ERRORS as error:
        warnings = (f"the price of the job is unknown: {failure_of(error)}",)
    return dataclasses.replace(
        ssh,
        interface="",
        cpus=instances.vcpus(f"{PREFIX}{own}") or 1,
        gpus=instances.gpus(f"{PREFIX}{own}"),
        connect={host: ("ssh", "-l", given.user, host.upper()) for host in spec.hosts},
        warnings=warnings,
        notes=notes,
    )


def describe(
    spec: TrainingJobSpec, given: Ec2Options, types: tuple[str, ...], known: Prices, region: str
) -> tuple[str, ...]:
    """Return the lines that describe the cost of a job.

    Args:
        spec: The job.
        given: The EC2 options of the job.
        types: The instance types. The job's own type is the first one.
        known: The prices.
        region: The region.
    """
    lines = [f"{type_} in {region}: on-demand price {_money(known.on_demand.get(type_))}" for type_ in types]
    pools = sorted(
        (series[-1][1], type_, zone, [price for _, price in series])
        for (type_, zone), series in known.spot.items()
        if not given.zones or zone in given.zones
    )
    for now, type_, zone, prices in pools[:_SHOWN]:
        lines.append(
            f"spot {type_} in {zone}: ${now:.4f} an hour now, ${min(prices):.4f} to ${max(prices):.4f} in the last "
            f"{_DAYS:g} days"
        )
    if len(pools) > _SHOWN:
        lines.append(f"spot: {len(pools) - _SHOWN} more pools with higher prices")
    lines += _expected(spec, given, known.on_demand.get(types[0]), pools[0][0] if pools else None)
    return tuple(lines)


def _expected(spec: TrainingJobSpec, given: Ec2Options, on_demand: float | None, spot: float | None) -> list[str]:
    hosts = spec.instance_count
    hours = (spec.stopping.max_run_s or 0) / _HOUR
    if on_demand is None or not hours:
        return []
    whole = hosts * hours * on_demand
    lines = [f"at most ({hosts} hosts for max_run, {hours:g} h): ${whole:.2f} on demand"]
    if spec.spot and spot is not None:
        base = min(given.on_demand_base, hosts)
        mixed = hours * (base * on_demand + (hosts - base) * spot)
        lines[0] += f", ${mixed:.2f} with spot capacity at current prices ({(1 - mixed / whole) * 100:.0f} % less)"
    for text, limit in (("budget", given.budget), ("max_price_per_hour", given.max_price_per_hour)):
        if limit is not None:
            lines.append(f"{text}: the job is stopped at ${limit:.2f}{' an hour' if text != 'budget' else ''}")
    return lines


def _money(price: float | None) -> str:
    return f"${price:.4f} an hour" if price is not None else "unknown"
