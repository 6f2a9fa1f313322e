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
from estimators.backends.openssh.command import Destination, SshSettings
from estimators.backends.openssh.connection import CommandEnd, Connections, NotStarted, SshConnection

pytestmark = pytest.mark.leaves("files")

T = TypeVar("T")
Open = Callable[[Destination, SshSettings], SshConnection]
Run = Callable[..., CommandEnd]


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


def test_words_and_bytes_arrive_as_they_are(connect: Open, run: Run, there: Destination, settings: SshSettings) -> None:
    connection = connect(there, settings)
    words = ["a b", "it's", '"$HOME"', "`id`", "*", "", "ü", "a\nb", "!x"]
    done = run(connection, "printf", "%s|", *words)
    assert (done.code, done.output.decode()) == (0, "".join(f"{word}|" for word in words))
    failed = run(connection, "sh", "-c", "echo why >&2; exit 3")
    assert (failed.code, failed.last_line) == (3, "why")
    assert run(connection, "no-such-program").code == 127
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
    os.set_blocking(program.output, True)
    os.write(program.input, b"hello\n")
    assert os.read(program.output, 6) + os.read(program.output, 100) in (b"first\nHELLO\n",)
    program.close_input()
    wait.until((tmp_path / "over").exists)
    program.close()
    wait.until(lambda: connection.ended)  # with the last one
    program = wait(connect(there, settings).start(["/no/such/program"]))
    assert wait(program.wait()) in (126, 127) and "not found" in program.complaint
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
        os.set_blocking(program.output, True)
        assert os.read(program.output, 100) == b"mine\n"
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


def test_only_a_known_host_key_is_taken(
    connect: Open, run: Run, there: Destination, keys: Keys, settings: SshSettings, tmp_path: Path
) -> None:
    strict = SshSettings(known_hosts=tmp_path / "strict", config=settings.config, strict=True)
    with pytest.raises(HostError, match="is not known"):
        connect(there, strict)
    public = next(keys.folder.glob(f"host-{there.host}-*.pub")).read_text()
    strict.known_hosts.write_text(f"i-0123 {public}")
    named = Destination(host=there.host, port=there.port, options={"HostKeyAlias": "i-0123"})
    assert run(connect(named, strict), "true").code == 0
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


def test_a_login_that_fails_says_what_to_do(
    connect: Open, there: Destination, settings: SshSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config").write_text(f"Host *\n  IdentitiesOnly yes\n  IdentityFile {key(tmp_path / 'other')}\n")
    with pytest.raises(HostError, match=r"the login was refused .*ssh-copy-id"):
        connect(there, SshSettings(known_hosts=settings.known_hosts, config=tmp_path / "config"))
    with pytest.raises(HostError, match="nothing listens"):
        connect(Destination(host="127.0.0.5", port=free_port("127.0.0.5")), settings)
    with pytest.raises(HostError, match="the name cannot be resolved"):
        connect(Destination(host="no-such-host.invalid"), settings)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(HostError, match="openssh-client"):
        connect(there, settings)


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


def test_a_login_that_is_dropped_or_comes_too_early_is_tried_again(
    wait: Wait, keys: Keys, settings: SshSettings
) -> None:
    """sshd drops logins at random from the second on, and all from the fourth."""
    server = Server(keys, "127.0.0.6", more="MaxStartups 2:50:4")
    connections = Connections(wait.loop, settings)
    there = Destination(host=server.address, port=server.port)
    try:
        assert len(wait(gather(*(connections.open(there) for _ in range(12))))) == 12
        server.close()
        wait.loop.call_later(0.5, server.start)
        wait(connections.open(there, patience=60))
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


def test_nothing_connects_without_its_master_and_nothing_is_left_of_it_here(
    wait: Wait, there: Destination, settings: SshSettings, own_temporary_folder: Path
) -> None:
    connections = Connections(wait.loop, settings)
    connection = wait(connections.open(there))
    connection._socket.unlink()
    assert wait(connection.run(["true"])).code == 255
    master = connection._master
    assert master is not None
    connections.close()
    wait.until(lambda: not Path(f"/proc/{master.pid}").exists())
    assert list(own_temporary_folder.glob("fleetfit-????????")) == []
