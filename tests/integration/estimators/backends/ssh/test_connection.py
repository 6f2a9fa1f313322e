"""Connections to real sshd."""

from __future__ import annotations

import asyncio
import getpass
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sshd import Keys, Server, free_port, key

from container.system.asyncio_loop import AsyncioLoop, gather
from estimators.backends.hosts.provider import HostError
from estimators.backends.ssh.child import Finished
from estimators.backends.ssh.command import Destination, SshSettings
from estimators.backends.ssh.connection import Connections, NotStarted, SshConnection

pytestmark = pytest.mark.leaves("files")

T = TypeVar("T")
Open = Callable[[Destination, SshSettings], SshConnection]
Run = Callable[..., Finished]


class Wait:
    """Runs coroutines and waits for conditions."""

    def __init__(self, loop: AsyncioLoop) -> None:
        self.loop = loop

    def __call__(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self.loop.run(asyncio.wait_for(coroutine, 120))

    def until(self, condition: Callable[[], object]) -> None:
        async def look() -> None:
            while not condition():
                await asyncio.sleep(0.02)

        self(look())


@pytest.fixture
def wait(asyncio_loop: AsyncioLoop) -> Wait:
    return Wait(asyncio_loop)


@pytest.fixture
def connect(wait: Wait) -> Iterator[Open]:
    """Connects."""
    opened: list[Connections] = []

    def connect(destination: Destination, settings: SshSettings) -> SshConnection:
        opened.append(Connections(wait.loop, settings))
        return wait(opened[-1].open(destination))

    yield connect
    for connections in opened:
        connections.close()


@pytest.fixture
def there(server: Server) -> Destination:
    return Destination(host=server.address, port=server.port)


@pytest.fixture
def run(wait: Wait) -> Run:
    """Runs a command."""
    return lambda connection, *argv, source=b"": wait(connection.run(argv, source))


def test_words_arrive_as_they_are(connect: Open, run: Run, there: Destination, settings: SshSettings) -> None:
    connection = connect(there, settings)
    words = ["a b", "it's", '"$HOME"', "`id`", "*", "", "ü", "a\nb", "!x"]
    done = run(connection, "printf", "%s|", *words)
    assert (done.code, done.output.decode()) == (0, "".join(f"{word}|" for word in words))
    failed = run(connection, "sh", "-c", "echo why >&2; exit 3")
    assert (failed.code, failed.last_line) == (3, "why")
    assert run(connection, "no-such-program").code == 127


def test_bytes_go_in(connect: Open, run: Run, there: Destination, settings: SshSettings) -> None:
    connection = connect(there, settings)
    for source in (os.urandom(3 << 20), b""):
        assert run(connection, "cat", source=source).output == source


def test_one_login_serves_all(connect: Open, run: Run, wait: Wait, keys: Keys, settings: SshSettings) -> None:
    server = Server(keys, "127.0.0.10")  # on which nobody else is about to leave
    try:
        wait.until(lambda: not server.children())  # the one that looked whether it listens
        connection = connect(Destination(host=server.address, port=server.port), settings)
        for _ in range(3):
            run(connection, "true")
        assert len(server.children()) == 1
    finally:
        server.close()


def test_a_program_is_spoken_to_and_ends_with_its_input(
    connect: Open, wait: Wait, there: Destination, settings: SshSettings, tmp_path: Path
) -> None:
    connection = connect(there, settings)
    words = (
        "import sys; print('first'); sys.stdout.flush()\nfor line in sys.stdin: print(line.upper(), end='', flush=True)"
    )
    words += f"\nopen({str(tmp_path / 'over')!r}, 'w')"
    program = wait(connection.start([sys.executable, "-c", words]))
    os.set_blocking(program.read, True)
    os.write(program.write, b"hello\n")
    assert os.read(program.read, 6) + os.read(program.read, 100) in (b"first\nHELLO\n",)
    os.close(program.write)
    wait.until((tmp_path / "over").exists)
    os.close(program.read)
    wait.until(lambda: connection.ended)  # with the last one


def test_a_program_that_is_not_there_ends(connect: Open, wait: Wait, there: Destination, settings: SshSettings) -> None:
    connection = connect(there, settings)
    program = wait(connection.start(["/no/such/program"]))
    ended = wait(program.process.wait())
    assert ended.code in (126, 127) and "not found" in ended.errors and "not found" in program.complaint
    program.close()
    with pytest.raises(NotStarted, match="no word of it"):
        wait(connect(there, settings).start([], script="echo 'no word of it' >&2; exit 1"))


def test_what_a_shell_prints_at_its_start_is_not_the_programs(
    connect: Open, wait: Wait, keys: Keys, settings: SshSettings, tmp_path: Path
) -> None:
    (tmp_path / ".bashrc").write_text("echo 'Welcome to the lab!'\nseq 20000\n")
    server = Server(keys, "127.0.0.3", more=f"SetEnv HOME={tmp_path}")
    try:
        connection = connect(Destination(host=server.address, port=server.port), settings)
        program = wait(connection.start(["echo", "mine"]))
        os.set_blocking(program.read, True)
        assert os.read(program.read, 100) == b"mine\n"
        program.close()
    finally:
        server.close()


def test_a_start_that_is_cancelled_leaves_nothing(
    connect: Open, wait: Wait, there: Destination, settings: SshSettings, tmp_path: Path
) -> None:
    connection = connect(there, settings)
    descriptors = os.listdir("/proc/self/fd")

    async def begin() -> None:
        task = asyncio.ensure_future(connection.start([], script=f"touch '{tmp_path}'/begun; exec cat"))
        while not (tmp_path / "begun").exists():
            await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    wait(begin())
    wait.until(lambda: os.listdir("/proc/self/fd") == descriptors)
    assert connection.ended is None


def test_a_key_that_changed_is_refused(connect: Open, run: Run, keys: Keys, settings: SshSettings) -> None:
    server = Server(keys, "127.0.0.4")
    there = Destination(host=server.address, port=server.port)
    assert run(connect(there, settings), "true").code == 0
    assert f"[{server.address}]:{server.port} ssh-ed25519" in settings.known_hosts.read_text()
    server.close()
    host_key = next(keys.folder.glob("host-127.0.0.4-*[0-9]"))
    host_key.unlink()
    Path(f"{host_key}.pub").unlink()
    key(host_key)
    server.start()
    try:
        with pytest.raises(HostError, match="host key has changed") as refused:
            connect(there, settings)
        command = str(refused.value).partition("`")[2].partition("`")[0]
        subprocess.run(command, shell=True, check=True, capture_output=True)  # the remedy as it is printed
        assert run(connect(there, settings), "true").code == 0
    finally:
        server.close()


def test_strict_takes_no_key_that_is_not_known(
    connect: Open, run: Run, there: Destination, settings: SshSettings, keys: Keys
) -> None:
    strict = SshSettings(known_hosts=settings.known_hosts, config=settings.config, strict=True)
    with pytest.raises(HostError, match="is not known"):
        connect(there, strict)
    public = next(keys.folder.glob(f"host-{there.host}-*.pub")).read_text()
    settings.known_hosts.write_text(f"i-0123 {public}")
    named = Destination(host=there.host, port=there.port, options={"HostKeyAlias": "i-0123"})
    assert run(connect(named, strict), "true").code == 0


def test_a_refused_login_says_what_to_do(
    connect: Open, there: Destination, settings: SshSettings, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text(f"Host *\n  IdentitiesOnly yes\n  IdentityFile {key(tmp_path / 'other')}\n")
    with pytest.raises(HostError, match=r"the login was refused .*ssh-copy-id"):
        connect(there, SshSettings(known_hosts=settings.known_hosts, config=tmp_path / "config"))


def test_nobody_there_is_told_apart(connect: Open, settings: SshSettings) -> None:
    with pytest.raises(HostError, match="nothing listens"):
        connect(Destination(host="127.0.0.5", port=free_port("127.0.0.5")), settings)
    with pytest.raises(HostError, match="the name cannot be resolved"):
        connect(Destination(host="no-such-host.invalid"), settings)


def test_the_configuration_counts(
    connect: Open, run: Run, there: Destination, keys: Keys, settings: SshSettings, tmp_path: Path
) -> None:
    """Names, jumps over other hosts, and forwardings that would be in the way."""
    config = tmp_path / "config"
    jump_hosts = tmp_path / "jump hosts"
    config.write_text(
        f"Host lab\n  HostName {there.host}\n  Port {there.port}\n  ProxyJump hop\n  LocalForward 1 nowhere:1\n"
        f"  RemoteCommand false\n  RequestTTY yes\n"
        f'Host hop\n  HostName {there.host}\n  Port {there.port}\n  UserKnownHostsFile "{jump_hosts}"\n'
        f"  StrictHostKeyChecking accept-new\nHost *\n  User {getpass.getuser()}\n  IdentityFile {keys.user}\n"
    )
    own = SshSettings(known_hosts=settings.known_hosts, config=config)
    assert run(connect(Destination(host="lab"), own), "echo", "hi").output == b"hi\n"
    config.write_text("Nonsense yes\n")
    with pytest.raises(HostError, match="ssh configuration is wrong"):
        connect(Destination(host="lab"), own)


def test_many_logins_at_once_come_through_a_narrow_door(wait: Wait, keys: Keys, settings: SshSettings) -> None:
    """sshd drops logins at random from the second on, and all from the fourth."""
    server = Server(keys, "127.0.0.6", more="MaxStartups 2:50:4")
    connections = Connections(wait.loop, settings)
    there = Destination(host=server.address, port=server.port)
    try:
        assert len(wait(gather(*(connections.open(there) for _ in range(12))))) == 12
    finally:
        connections.close()
        server.close()


def test_patience_waits_for_a_machine_that_starts(wait: Wait, keys: Keys, settings: SshSettings) -> None:
    server = Server(keys, "127.0.0.7")
    server.close()
    connections = Connections(wait.loop, settings)
    wait.loop.call_later(0.5, server.start)
    try:
        wait(connections.open(Destination(host=server.address, port=server.port), patience=60))
    finally:
        connections.close()
        server.close()


def test_a_connection_that_breaks_is_told_and_so_is_the_end_of_what_ran(
    connect: Open, wait: Wait, keys: Keys, settings: SshSettings
) -> None:
    server = Server(keys, "127.0.0.8")
    connection = connect(Destination(host=server.address, port=server.port), settings)
    wait.loop.call_later(0.5, server.close)
    assert wait(connection.run(["sleep", "1000"])).code != 0
    wait.until(lambda: connection.ended)
    assert connection.ended != "the connection was closed"


def test_without_its_master_nothing_connects_by_itself(
    connect: Open, run: Run, there: Destination, settings: SshSettings
) -> None:
    connection = connect(there, settings)
    connection._socket.unlink()
    assert run(connection, "true").code == 255


@pytest.mark.soak
def test_a_link_that_hangs_is_noticed_in_15_s(connect: Open, wait: Wait, keys: Keys, settings: SshSettings) -> None:
    server = Server(keys, "127.0.0.9")
    connection = connect(Destination(host=server.address, port=server.port), settings)
    for pid in server.children():
        os.kill(pid, signal.SIGSTOP)
    try:
        wait.until(lambda: connection.ended)
        assert connection.ended is not None and "no sign of life" in connection.ended
    finally:
        server.close()


def test_nothing_is_left_of_it_here(
    wait: Wait, there: Destination, settings: SshSettings, own_temporary_folder: Path
) -> None:
    connections = Connections(wait.loop, settings)
    master = wait(connections.open(there))._master
    assert master is not None
    connections.close()
    wait.until(lambda: not Path(f"/proc/{master.pid}").exists())
    assert list(own_temporary_folder.glob("fleetfit-????????")) == []


def test_a_machine_without_ssh_is_told(
    connect: Open, there: Destination, settings: SshSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(HostError, match="openssh-client"):
        connect(there, settings)
