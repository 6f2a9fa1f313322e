"""Build ssh's command lines, and explain its error messages."""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping
from pathlib import Path

from container.contract.frozen import dataclass
from estimators.job.errors import ConfigurationError

#: Seconds within which a machine must accept a connection.
_CONNECT_S = 10
#: Seconds between ssh's keepalive requests, and how many requests may stay unanswered. ssh gives up after 15 s.
_ALIVE_S, _ALIVE_COUNT = 5, 2

#: Pattern of ssh's error message -> the reason and the remedy. The first match is used. ``{host}`` is the destination,
#: ``{words}`` a command line with which the user can try the login, ``{last}`` the last line of the message, and
#: ``{forget}`` a command that removes the old host key.
_REASONS: Mapping[str, str] = {
    r"REMOTE HOST IDENTIFICATION HAS CHANGED": (
        "its host key has changed: the machine was installed again, or another machine answers at its address. If "
        "you expected this change, remove the old key with {forget}"
    ),
    r"Host key verification failed|No \S+ host key is known": (
        "its host key, or the host key of a jump host, is not known. Log in once with `{words}` and accept the key"
    ),
    r"UNPROTECTED PRIVATE KEY FILE|bad permissions": (
        "other users of this machine can read the private key, so ssh refuses to use this key. Run `chmod 600` on "
        "the key file"
    ),
    r"Too many authentication failures": (
        "the ssh agent offered more keys than the host accepts. Name the right key with IdentityFile and "
        "IdentitiesOnly=yes in the ssh configuration"
    ),
    r"Permission denied": (
        "the login was refused ({last}). The login must work without a question: run `ssh-copy-id {host}` or "
        "`ssh-add`, then try `{words}`"
    ),
    r"Could not resolve hostname|Name or service not known": (
        "the name cannot be resolved. Check the spelling, or set the host's address with HostName in the ssh "
        "configuration"
    ),
    r"No route to host|Network is unreachable": (
        "there is no route to the host. Check the address and the network or VPN, and check that the machine is running"
    ),
    r"Connection timed out|Operation timed out|banner exchange": (
        "the host did not answer. Check that the address is right, that the machine is running, and that no firewall "
        "blocks ssh"
    ),
    r"Connection refused": (
        "nothing listens at its ssh port. Check that the port is right, and that sshd is running on the host"
    ),
    r"Session open refused by peer|session request failed": (
        "its sshd allows too few sessions per connection. Raise MaxSessions there"
    ),
    r"[Bb]ad configuration option|terminating, \d+ bad|Can't open user config file|Bad owner or permissions on": (
        "the ssh configuration is wrong: {last}"
    ),
    r"Timeout, server .* not responding": "it has given no sign of life for 15 s",
    r"kex_exchange_identification|Connection (closed|reset) by": (
        "the host closed the connection before the login: too many logins at once (MaxStartups), or this machine is "
        "blocked there"
    ),
}
#: Messages that ssh prints if sshd drops a login because there are too many logins at once.
DROPPED = re.compile(r"kex_exchange_identification|Connection (closed|reset) by|Exceeded MaxStartups")
#: Messages about errors that waiting cannot solve, even if the machine is just starting.
FINAL = re.compile(
    r"IDENTIFICATION HAS CHANGED|[Bb]ad configuration option|terminating, \d+ bad|Can't open user config|"
    r"UNPROTECTED PRIVATE KEY|Bad owner or permissions on"
)


#: The reason of a failure about which ssh prints nothing.
SILENT = "ssh ended without a message"


@dataclass(frozen=True, kw_only=True)
class SshSettings:
    """The settings with which ssh connects to the machines of a fleet, a set of machines for jobs.

    Attributes:
        known_hosts: The fleet's own file of host keys. ssh creates the file if the file does not exist.
        config: A configuration file to use instead of ``~/.ssh/config``.
        strict: Whether only host keys in ``known_hosts`` are accepted. If False, a new machine's key is accepted and
            written to the file. From then on, only this key is accepted for the machine.
        identity: The only private key to log in with. If None, the user's keys are used.
        options: Additional options of ssh, as for its ``-o``: name -> value.
    """

    known_hosts: Path
    config: Path | None = None
    strict: bool = False
    identity: Path | None = None
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def words(self, *, level: str = "ERROR", forwards: bool = False) -> list[str]:
        """Return ssh's command line for a session without prompts, up to the destination.

        Args:
            level: The log level of ssh.
            forwards: Whether the command requests a port forwarding. If False, the forwardings in the user's ssh
                configuration are disabled.
        """
        own = [str(self.known_hosts)]
        if not self.strict:
            own += ["~/.ssh/known_hosts", "~/.ssh/known_hosts2"]
        options = {
            **self.options,
            "BatchMode": "yes",
            "UserKnownHostsFile": " ".join(f'"{path}"' for path in own),
            "StrictHostKeyChecking": "yes" if self.strict else "accept-new",
            "UpdateHostKeys": "no",
            "HashKnownHosts": "no",
            "ConnectTimeout": str(_CONNECT_S),
            "ServerAliveInterval": str(_ALIVE_S),
            "ServerAliveCountMax": str(_ALIVE_COUNT),
            "LogLevel": level,
            "RequestTTY": "no",
            "RemoteCommand": "none",
            "PermitLocalCommand": "no",
            "ForwardAgent": "no",
            "ForwardX11": "no",
            "ClearAllForwardings": "no" if forwards else "yes",
        }
        if self.strict:
            options["GlobalKnownHostsFile"] = "none"
        if self.identity is not None:
            options |= {"IdentityFile": f'"{self.identity}"', "IdentitiesOnly": "yes"}
        config = ["-F", str(self.config)] if self.config is not None else []
        return ["ssh", *config, *(word for name, value in options.items() for word in ("-o", f"{name}={value}"))]


@dataclass(frozen=True, kw_only=True)
class Destination:
    """The destination of an ssh connection.

    Attributes:
        host: A host name in the ssh configuration or the network, or an address.
        user: The login name, or None for ssh's default.
        port: The port, or None for ssh's default.
        options: Options of ssh for this machine only, such as ``HostKeyAlias``: name -> value.
    """

    host: str
    user: str | None = None
    port: int | None = None
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.host or self.host.startswith("-") or re.search(r"[\s\0/@]", self.host):
            raise ConfigurationError(f"{self.host!r} is not the name or address of a host.")
        if self.user is not None and (not self.user or self.user.startswith("-") or re.search(r"[\s\0]", self.user)):
            raise ConfigurationError(f"host {self.host!r}: the user {self.user!r} is not a valid login name.")
        if self.port is not None and not 0 < self.port < 65536:
            raise ConfigurationError(f"host {self.host!r}: {self.port} is not a valid port.")

    def __str__(self) -> str:
        text = f"{self.user}@{self.host}" if self.user is not None else self.host
        return f"{text} (port {self.port})" if self.port is not None else text

    def words(self) -> list[str]:
        """Return the destination's arguments for ssh's command line."""
        return [
            *(word for name, value in self.options.items() for word in ("-o", f"{name}={value}")),
            *(("-p", str(self.port)) if self.port is not None else ()),
            *(("-l", self.user) if self.user is not None else ()),
            "--",
            self.host,
        ]


def reason(complaint: str, settings: SshSettings, destination: Destination) -> str:
    """Return why ssh has failed, with the remedy.

    Args:
        complaint: The text that ssh has printed to standard error.
        settings: The ssh settings of the fleet.
        destination: The machine.
    """
    lines = [line.strip() for line in complaint.splitlines() if line.strip() and not line.startswith("Warning: Perm")]
    last = lines[-1] if lines else SILENT
    config = ["-F", str(settings.config)] if settings.config is not None else []
    words = shlex.join(["ssh", *config, *(word for word in destination.words() if word != "--"), "true"])
    offending = re.search(r"Offending \S+ key in (.+):(\d+)", complaint)
    file = offending[1] if offending else str(settings.known_hosts)
    alias = destination.options.get("HostKeyAlias", destination.host)
    if destination.port not in (None, 22) and "HostKeyAlias" not in destination.options:
        alias = f"[{destination.host}]:{destination.port}"
    known = {
        "host": f"{destination.user}@{destination.host}" if destination.user else destination.host,
        "words": words,
        "last": last.removeprefix("ssh: "),
        "forget": "`" + shlex.join(["ssh-keygen", "-R", alias, "-f", file]) + "`",
    }
    for pattern, text in _REASONS.items():
        if re.search(pattern, complaint):
            return text.format(**known)
    return known["last"]
