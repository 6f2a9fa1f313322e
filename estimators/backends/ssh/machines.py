"""Read the machines of a fleet, the set of machines that jobs can use over ssh.

The machines are named in a list, a host file, the variable ``$FLEETFIT_HOSTS``, or a file that fleetfit stores for the
fleet.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from container.contract.frozen import dataclass
from container.contract.names import cut, shown
from container.contract.rules import option, read, refuse, seconds, text, texts, whole
from container.system import files
from estimators.backends.openssh.command import Destination, SshSettings
from estimators.job.errors import ConfigurationError
from estimators.records.record import jobs_folder

#: The environment variable that names machines (``h1:4,h2:4``) or the path of a host file.
VARIABLE = "FLEETFIT_HOSTS"
#: The name of the fleet if the user names no fleet.
DEFAULT_FLEET = "default"

_FORM = "a host is written as 'host', 'user@host', 'host:slots' or '[IPv6 address]:slots'"
_HOST = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?:\[(?P<six>[0-9a-fA-F:.%\w]+)\]|(?P<host>[^@\s:\[\]]+))(?::(?P<slots>\d+))?"
)


@dataclass(frozen=True, kw_only=True)
class SshMachine:
    """A machine of a fleet.

    Attributes:
        destination: The destination for ssh.
        slots: The maximum number of a job's processes on the machine. None for any number.
        address: The address at which the other machines reach this machine. If None, they use the address to which ssh
            has connected.
        label: The machine's name in messages. The default is the host name of the destination.
    """

    destination: Destination
    slots: int | None = None
    address: str | None = None
    label: str = ""

    @property
    def name(self) -> str:
        """Return the machine's name in messages and files: the label, or else the host and, if one is set, the port."""
        host, port = self.destination.host, self.destination.port
        return self.label or (host if port is None else f"{host}:{port}")

    def to_dict(self) -> dict[str, Any]:
        """Return the machine as an item of ``backend_options={"hosts": […]}``."""
        there = self.destination
        values = {"host": there.host, "user": there.user, "port": there.port}
        values |= {"slots": self.slots, "address": self.address}
        return {name: value for name, value in values.items() if value is not None}


def parse(text: str, where: str) -> SshMachine:
    """Parse ``[user@]host[:slots]``.

    Args:
        text: The text.
        where: The name of the option or file that the text is from, for the error message.

    Raises:
        ConfigurationError: the text does not have this format.
    """
    found = _HOST.fullmatch(text)
    if found is None:
        raise ConfigurationError(f"{where}: {text!r} is not a host; {_FORM}.")
    slots = found["slots"]
    if slots is not None and int(slots) == 0:
        raise ConfigurationError(f"{where}: {text!r} has no slots. Leave this host out.")
    destination = Destination(host=found["six"] or found["host"], user=found["user"])
    return SshMachine(destination=destination, slots=int(slots) if slots is not None else None)


@dataclass(frozen=True, kw_only=True)
class _Given:
    """A host that is specified by a dict. See :class:`SshMachine` and :class:`Destination` for the keys."""

    host: str = option(text(), "")
    user: str | None = option(text())
    port: int | None = option(whole(1, 65_535))
    slots: int | None = option(whole(1, 1_000_000))
    address: str | None = option(text())


def _from_dict(given: Mapping[str, Any], where: str) -> SshMachine:
    found: _Given = read(_Given, given, what=f"key of a host in {where}")
    if not found.host:
        raise ConfigurationError(f"{where}: {shown(dict(given))} has no 'host'.")
    destination = Destination(host=found.host, user=found.user, port=found.port)
    return SshMachine(destination=destination, slots=found.slots, address=found.address)


def parse_list(given: Any, where: str) -> tuple[SshMachine, ...]:
    """Parse a list of hosts. Each host is a string or a dict.

    Args:
        given: The list, or a string with hosts that are separated by commas.
        where: The name of the option that the list is from, for the error message.

    Raises:
        ConfigurationError: the value is not a list, names a host twice, or contains an invalid host.
    """
    if isinstance(given, str):
        given = [part.strip() for part in given.split(",") if part.strip()]
    if not isinstance(given, list | tuple):
        raise ConfigurationError(
            f"{where} must be a list of hosts such as ['node-1', 'ann@node-2:4'], got {shown(given)}."
        )
    machines = []
    for entry in given:
        if isinstance(entry, Mapping):
            machines.append(_from_dict(entry, where))
        elif isinstance(entry, str):
            machines.append(parse(entry, where))
        else:
            raise ConfigurationError(f"{where}: {shown(entry)} is not a host; {_FORM}.")
    return _once(machines, where)


def parse_file(text: str, where: str) -> tuple[SshMachine, ...]:
    """Parse the text of a host file.

    A host file has Open MPI's format (``host slots=4``), Horovod's format (``host:4``), or one host name per line.

    Args:
        text: The text.
        where: The path of the file, for the error message.

    Raises:
        ConfigurationError: a line has none of these formats, or a host is named twice.
    """
    machines = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        place = f"{where}, line {number}"
        machine = parse(words[0], place)
        for word in words[1:]:
            name, equals, value = word.partition("=")
            if not equals or name not in ("slots", "max_slots", "max-slots", "address"):
                raise ConfigurationError(
                    f"{place}: {cut(word, 80)!r} is neither slots=N, max_slots=N nor address=ADDRESS."
                )
            if name == "address":
                machine = dataclasses.replace(machine, address=value)
            elif not value.isdecimal() or int(value) == 0:
                raise ConfigurationError(f"{place}: {cut(word, 80)!r}: the number must be at least 1.")
            elif name == "slots":
                machine = dataclasses.replace(machine, slots=int(value))
        machines.append(machine)
    return _once(machines, where)


def read_file(path: Path, where: str) -> tuple[SshMachine, ...]:
    """Read a host file, and return its machines. See :func:`parse_file` for the file's format.

    Args:
        path: The path of the file.
        where: The option or variable that names the file, for the error message.

    Raises:
        ConfigurationError: the file cannot be read, or is invalid.
    """
    try:
        text = path.expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{where}: the host file {path} cannot be read: {error}.") from None
    return parse_file(text, str(path))


def _once(machines: Iterable[SshMachine], where: str) -> tuple[SshMachine, ...]:
    seen: dict[str, SshMachine] = {}
    for machine in machines:
        if machine.name in seen:
            raise ConfigurationError(f"{where}: {machine.name!r} is named twice. Name each host once, with its slots.")
        seen[machine.name] = machine
    return tuple(seen.values())


def _path(where: str, value: Any) -> Path:
    return Path(text()(where, value)).expanduser()


def _fleet(where: str, value: Any) -> str:
    name: str = text()(where, value)
    if re.fullmatch(r"[A-Za-z0-9][\w.-]{0,62}", name) is None:
        raise refuse(where, "a name of letters, digits, '-', '_' and '.'", name)
    return name


@dataclass(frozen=True, kw_only=True)
class SshOptions:
    """The ``RunOptions(backend_options={…})`` of jobs on machines that are reached by ssh.

    Attributes:
        hosts: The machines. If None, the machines in ``host_file``, ``$FLEETFIT_HOSTS`` or the fleet's stored file are
            used.
        host_file: A file that names the machines.
        python: The Python interpreter for fleetfit's processes and the scripts: an absolute path on the machines or a
            name in their PATH. If None, fleetfit creates an environment on the machines, and uses its interpreter.
        requirements: The packages of the environment that is created on the machines. The default is the packages that
            are installed on this machine.
        ssh_config: A configuration file to use instead of ``~/.ssh/config``.
        fleet: The name of the fleet. Host keys, and machines added by ``fleetfit hosts add``, are stored under this
            name.
        caller_address: The address at which the machines reach this machine. The default is the source address of the
            ssh connection.
        silence: The number of seconds without a message from a machine after which the machine counts as lost.
        wait: The number of seconds to wait for machines that other jobs use.
    """

    hosts: tuple[SshMachine, ...] | None = option(lambda where, value: parse_list(value, where))
    host_file: Path | None = dataclasses.field(default=None, metadata={"rule": _path})
    python: str | None = option(text())
    requirements: tuple[str, ...] | None = option(texts(one_too=False, such_as=" such as ['tensorflow==2.21.*']"))
    ssh_config: Path | None = dataclasses.field(default=None, metadata={"rule": _path})
    fleet: str = option(_fleet, DEFAULT_FLEET)
    caller_address: str | None = option(text())
    silence: float = option(seconds(1, 3600), 15.0)
    wait: float = option(seconds(0), 0.0)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> SshOptions:
        """Read the options from ``backend_options``.

        Raises:
            ConfigurationError: an option is unknown, or a value is invalid.
        """
        made: SshOptions = read(cls, options)
        if made.hosts is not None and made.host_file is not None:
            raise ConfigurationError("backend_options: give either 'hosts' or 'host_file', not both.")
        if made.python is not None and made.requirements is not None:
            raise ConfigurationError(
                "backend_options: give either 'python' (an existing environment) or 'requirements' (the packages of "
                "a new one), not both."
            )
        return made

    def machines(self) -> tuple[SshMachine, ...]:
        """Return the machines from the first source that names machines.

        The sources are ``hosts``, ``host_file``, ``$FLEETFIT_HOSTS`` and the fleet's stored file, in this order.

        Raises:
            ConfigurationError: a host file does not exist, or is invalid.
        """
        if self.hosts is not None:
            return self.hosts
        if self.host_file is not None:
            return read_file(self.host_file, "backend_options: 'host_file'")
        if given := os.environ.get(VARIABLE, "").strip():
            return read_file(Path(given), f"${VARIABLE}") if "/" in given else parse_list(given, f"${VARIABLE}")
        path = hosts_file(self.fleet)
        return read_file(path, f"fleet {self.fleet!r}") if path.exists() else ()

    def settings(self) -> SshSettings:
        """Return the settings with which ssh connects to the machines."""
        return SshSettings(known_hosts=folder(self.fleet) / "known_hosts", config=self.ssh_config)


def folder(fleet: str) -> Path:
    """Return the path of the folder with a fleet's stored data."""
    return jobs_folder().parent / "fleets" / fleet


def locks_folder() -> Path:
    """Return the path of the folder with the machines' locks. All fleets share it, as a machine may be in several."""
    return jobs_folder().parent / "machine-locks"


def hosts_file(fleet: str) -> Path:
    """Return the path of the file with the machines that ``fleetfit hosts add`` has added."""
    return folder(fleet) / "hosts"


def save(fleet: str, machines: Iterable[SshMachine]) -> None:
    """Write the machines of a fleet into the fleet's stored file.

    Raises:
        ConfigurationError: a machine has a port, which a host file cannot contain.
        OSError: the file cannot be written.
    """
    lines = []
    for machine in machines:
        if machine.destination.port is not None:
            raise ConfigurationError(f"{machine.name}: a host file has no port. Set the port in the ssh configuration.")
        user = f"{machine.destination.user}@" if machine.destination.user else ""
        host = f"[{machine.destination.host}]" if ":" in machine.destination.host else machine.destination.host
        slots = f" slots={machine.slots}" if machine.slots is not None else ""
        lines.append(f"{user}{host}{slots}{f' address={machine.address}' if machine.address else ''}\n")
    path = hosts_file(fleet)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    files.replace(path, "".join(lines).encode())
