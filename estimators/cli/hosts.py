"""List, check and prepare the machines that jobs reach by ssh: ``fleetfit hosts``."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from container.contract.strategies import FRAMEWORKS
from estimators.cli import Exit, console, parsing
from estimators.job.errors import ConfigurationError

if TYPE_CHECKING:
    from estimators.backends.ssh.checking import MachineReport
    from estimators.backends.ssh.machines import SshMachine, SshOptions

_EXAMPLES = """\
examples:
  fleetfit hosts add node-1 ann@node-2 --slots 4     add machines, on which jobs run by default
  fleetfit hosts list
  fleetfit hosts check                               check whether the machines can run jobs
  fleetfit hosts prepare                             install Python and its packages in advance
  fleetfit hosts shell node-1
  fleetfit hosts remove node-2

If $FLEETFIT_HOSTS is set, jobs use the hosts in this variable. Otherwise jobs use the hosts that you have added with
`fleetfit hosts add`. To log in, fleetfit uses the host names, keys, jump hosts and agents of ~/.ssh/config, just as
`ssh HOST` does.
"""


def add(subparsers: Any) -> None:
    """Add the command ``hosts`` to the command line."""
    formatter = parsing.HelpFormatter
    hosts = subparsers.add_parser(
        "hosts", help="list, check and prepare the machines that jobs reach by ssh", epilog=_EXAMPLES,
        formatter_class=formatter,
        description="Lists, checks, adds, removes and prepares the machines on which jobs run over ssh.",
    )  # fmt: skip
    commands = hosts.add_subparsers(title="commands", metavar="COMMAND", dest="what", required=True)

    def command(name: str, run: Any, text: str, *, names: str = "", config: bool = True) -> argparse.ArgumentParser:
        made: argparse.ArgumentParser = commands.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}."
        )
        if names:
            made.add_argument(
                "hosts", nargs=names, metavar="HOST", help="[user@]host[:slots]; slots: number of processes on the host"
            )
        made.add_argument("--fleet", default="default", metavar="NAME", help="the fleet's name (default: %(default)s)")
        if config:
            made.add_argument("--host-file", metavar="FILE", help="file that lists the hosts, in mpirun's format")
            made.add_argument("--ssh-config", metavar="FILE", help="ssh configuration to use instead of ~/.ssh/config")
        made.set_defaults(run=run)
        return made

    command("list", run_list, "list the machines").add_argument("--json", action="store_true", help="print as JSON")
    check = command(
        "check", run_check, "check Python, cores, GPUs, disk and clock of each machine, and the network between them",
        names="*",
    )  # fmt: skip
    check.add_argument("--json", action="store_true", help="print as JSON")
    added = command("add", run_add, "add machines to the fleet", names="+", config=False)
    added.add_argument(
        "--slots", type=parsing.count, metavar="N", help="number of processes that a job runs on each machine"
    )
    command("remove", run_remove, "remove machines from the fleet", names="+", config=False)
    prepare = command("prepare", run_prepare, "create the Python environment on the machines", names="*")
    content = prepare.add_mutually_exclusive_group()
    content.add_argument(
        "--requirement",
        action="append",
        metavar="SPEC",
        help="package to install on the machines; may be repeated (default: the packages installed here)",
    )
    content.add_argument(
        "--framework",
        action="append",
        choices=tuple(FRAMEWORKS),
        help="framework to install on the machines, in the version installed here; may be repeated (default: "
        "tensorflow)",
    )
    command("shell", run_shell, "open a shell on a machine, by the same ssh connection as jobs").add_argument(
        "host", metavar="HOST", help="[user@]host"
    )


def options(args: argparse.Namespace) -> SshOptions:
    """Return the ssh options that the command line specifies."""
    from estimators.backends.ssh.machines import SshOptions

    hosts = list(getattr(args, "hosts", None) or [])
    return SshOptions.of(
        {
            "fleet": args.fleet,
            "hosts": hosts or None,
            "host_file": None if hosts else getattr(args, "host_file", None),
            "ssh_config": getattr(args, "ssh_config", None),
            "requirements": getattr(args, "requirement", None),
        }
    )


def _machines(chosen: SshOptions) -> tuple[SshMachine, ...]:
    machines = chosen.machines()
    if not machines:
        raise ConfigurationError(
            "there are no hosts. Name hosts, set $FLEETFIT_HOSTS, or add hosts with `fleetfit hosts add HOST…`."
        )
    return machines


def run_list(args: argparse.Namespace) -> int:
    """Print the machines of the fleet."""
    machines = options(args).machines()
    if args.json:
        console.out_json(
            [
                {"host": one.name, "user": one.destination.user, "slots": one.slots, "address": one.address}
                for one in machines
            ]
        )
        return Exit.OK
    for one in machines:
        console.out(
            f"{one.destination}{f'  slots={one.slots}' if one.slots else ''}{f'  {one.address}' if one.address else ''}"
        )
    if not machines:
        console.say("there are no hosts. Add hosts with `fleetfit hosts add HOST…`.")
    return Exit.OK


def run_check(args: argparse.Namespace) -> int:
    """Check the machines, and print the results."""
    from estimators.backends.ssh import checking

    chosen = options(args)
    reports = checking.check(chosen.settings(), _machines(chosen), on_step=console.say)
    if args.json:
        console.out_json([to_dict(report) for report in reports])
    else:
        for line in lines(reports):
            console.out(line)
    return Exit.FAILED if any(report.warnings() for report in reports) else Exit.OK


def to_dict(report: MachineReport) -> dict[str, Any]:
    """Return a report as JSON-serialisable data."""
    return {
        "host": report.machine.name,
        "address": report.address,
        **report.facts,
        "clock_s": report.clock,
        "unreachable": report.unreachable,
        "warnings": report.warnings(),
    }


def lines(reports: list[MachineReport]) -> list[str]:
    """Return reports as lines of text. The text has a line for each host, and a line for each problem."""
    told = []
    for report in reports:
        warnings = report.warnings()
        mark = "ok" if not warnings else "--"
        text = ""
        if facts := report.facts:
            gpus = f", {facts['gpus']} GPUs" if facts["gpus"] else ""
            clock = f", clock {report.clock:+.2f} s" if report.clock is not None else ""
            text = (
                f"  {report.address}  {facts['processor']}, {facts['cpus']} cores{gpus}, {facts['disk'] / 1e9:.0f} GB "
                f"free, Python {', '.join(facts['pythons'])}{clock}"
            )
        told.append(f"{mark}  {report.machine.name}{text}")
        told += [f"      {warning}." for warning in warnings]
    there = sum(bool(report.facts) for report in reports)
    if there > 1 and not any(report.unreachable for report in reports):
        told.append(f"All {there} machines reach each other.")
    return told


def run_add(args: argparse.Namespace) -> int:
    """Add the named machines to the fleet."""
    import dataclasses

    from estimators.backends.ssh import machines

    path = machines.hosts_file(args.fleet)
    known = {one.name: one for one in (machines.read_file(path, "fleet") if path.exists() else ())}
    for one in options(args).hosts or ():
        known[one.name] = dataclasses.replace(one, slots=one.slots or args.slots)
    machines.save(args.fleet, known.values())
    console.say(f"the fleet has {len(known)} hosts: {', '.join(known)}. Run `fleetfit hosts check` to check the hosts.")
    return Exit.OK


def run_remove(args: argparse.Namespace) -> int:
    """Remove the named machines from the fleet."""
    from container.contract.names import unknown
    from estimators.backends.ssh import machines

    path = machines.hosts_file(args.fleet)
    known = {one.name: one for one in (machines.read_file(path, "fleet") if path.exists() else ())}
    for one in options(args).hosts or ():
        if one.name not in known:
            raise ConfigurationError(unknown(f"host of fleet {args.fleet!r}", one.name, known))
        del known[one.name]
    machines.save(args.fleet, known.values())
    console.say(f"{len(known)} hosts are left{': ' if known else ''}{', '.join(known)}.")
    return Exit.OK


def run_prepare(args: argparse.Namespace) -> int:
    """Create the Python environment for jobs on the machines, one machine after another."""
    from estimators.backends.hosts import environment
    from estimators.provision.errors import ProvisionError

    chosen = options(args)
    settings = chosen.settings()
    settings.known_hosts.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    failed = 0
    machines = _machines(chosen)
    try:
        frameworks = args.framework or ("tensorflow",)
        wanted = environment.PythonEnvironment.of(
            chosen.requirements, frameworks=frameworks, horovod="tensorflow" in frameworks
        )
    except ProvisionError as error:
        console.say(f"{error}")
        return Exit.FAILED
    for one in machines:
        shell = environment.Shell([*settings.words(), *one.destination.words()])
        try:
            environment.prepare(shell, wanted, lambda text, one=one: console.say(f"{one.name}: {text}"))  # type: ignore[misc]
        except (environment.HostError, ProvisionError) as error:
            failed += 1
            console.say(f"{one.name}: {error}.")
    return Exit.FAILED if failed else Exit.OK


def run_shell(args: argparse.Namespace) -> int:
    """Log in to a machine. The fleet's file of known host keys is used."""
    from estimators.backends.ssh.machines import parse

    chosen = options(args)
    known = {one.name: one for one in chosen.machines()}
    machine = known.get(args.host) or parse(args.host, "HOST")
    config = ["-F", str(chosen.ssh_config)] if chosen.ssh_config is not None else []
    files = f'UserKnownHostsFile="{chosen.settings().known_hosts}" "~/.ssh/known_hosts"'
    argv = ["ssh", *config, "-o", files, *machine.destination.words()]
    sys.stdout.flush()
    try:
        os.execvp(argv[0], argv)
    except FileNotFoundError:
        console.say("ssh is not installed on this machine. Install it (apt-get install openssh-client).")
        return Exit.FAILED
