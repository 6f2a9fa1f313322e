"""What a job on EC2 would be: where, on what, for how much. Asks EC2, and starts nothing."""

from __future__ import annotations

import dataclasses

from botocore.exceptions import BotoCoreError, ClientError

from estimators.backends.ec2 import prices
from estimators.backends.ec2.api import Ec2Api, failure_of
from estimators.backends.ec2.options import PREFIX, Ec2Options, instance_types
from estimators.backends.hosts import shipping
from estimators.backends.hosts.provider import Finding, Placement
from estimators.job import instances
from estimators.job.errors import ConfigurationError
from estimators.job.request import RunOptions, TrainingJobSpec

#: For how many days back prices are shown, and how many pools are.
_DAYS, _SHOWN = 7.0, 8
_HOUR = 3600.0


def ssh_part(options: RunOptions, given: Ec2Options) -> RunOptions:
    """Return the options of what is done over ssh."""
    part = {
        "python": given.python,
        "requirements": list(given.requirements) if given.requirements is not None else None,
        "caller_address": given.caller_address,
        "silence": given.silence,
        "hosts": [],
    }
    return dataclasses.replace(options, backend_options=part)


def placement(spec: TrainingJobSpec, options: RunOptions) -> Placement:
    """Return where a job would run, with types, zones and prices as notes."""
    given = Ec2Options.of(options.backend_options)
    own, *_ = types = instance_types(spec, given)
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    try:
        api = Ec2Api(region=given.region, profile=given.profile)
        known = prices.Prices(
            {type_: price for type_ in types if (price := given.on_demand_price or api.on_demand_price(type_))},
            api.spot_prices(types, days=_DAYS) if spec.spot else (),
        )
        notes = describe(spec, given, types, known, api.region)
    except (BotoCoreError, ClientError, ConfigurationError) as error:
        warnings = (f"the price of the job is unknown: {failure_of(error) or error}",)
    cache = "~/.cache/fleetfit/hosts"
    return Placement(
        base_dir=lambda host: f"/tmp/fleetfit-hosts/{spec.name}/hosts/{host}/ml",
        python=given.python or f"{cache}/env/bin/python",
        package=f"{cache}/{shipping.code().name}/container",
        interface="",
        cpus=instances.vcpus(f"{PREFIX}{own}") or 1,
        gpus=instances.gpus(f"{PREFIX}{own}"),
        connect=lambda host: ("ssh", "-l", given.user, host.upper()),
        warnings=warnings,
        notes=notes,
    )


def describe(
    spec: TrainingJobSpec, given: Ec2Options, types: tuple[str, ...], known: prices.Prices, region: str
) -> tuple[str, ...]:
    """Return what a job would cost, line by line.

    Args:
        spec: The job.
        given: What it asks for.
        types: The instance types, the job's own first.
        known: The prices.
        region: The region.
    """
    lines = []
    for type_ in types:
        price = known.on_demand.get(type_)
        lines.append(f"{type_} in {region}: on-demand price {_money(price)}")
    rows = [
        (now, type_, zone, known.spot_range(type_, zone))
        for type_ in types
        for zone in known.zones(type_)
        if (now := known.spot_now(type_, zone)) is not None and (not given.zones or zone in given.zones)
    ]
    for now, type_, zone, ranged in sorted(rows)[:_SHOWN]:
        least, most = ranged or (now, now)
        lines.append(
            f"spot {type_} in {zone}: ${now:.4f} an hour now, ${least:.4f} to ${most:.4f} in the last {_DAYS:g} days"
        )
    if len(rows) > _SHOWN:
        lines.append(f"spot: {len(rows) - _SHOWN} more pools with higher prices")
    lines += _expected(spec, given, known.on_demand.get(types[0]), min(rows)[0] if rows else None)
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


def findings() -> list[Finding]:
    """Say whether EC2 can be asked, and what is left of fleets of ours."""
    try:
        api = Ec2Api()
        there = api.remains()
    except (BotoCoreError, ClientError, ConfigurationError) as error:
        failure = failure_of(error)
        text = str(failure) if failure is not None else str(error)
        return [Finding(name="ec2", ok=None, text=f"not set up: {text.rstrip('.')}")]
    count = sum(len(fleet.instances) for fleet in there)
    text = f"region {api.region}; {count} instances of fleetfit's jobs are running" if there else f"region {api.region}"
    return [Finding(name="ec2", ok=True, text=text, remedy="`fleetfit clean --ec2` removes unused resources")]
