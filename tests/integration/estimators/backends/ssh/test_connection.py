"""Connections to real sshd."""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from loops import RunUntil
from sshd import Keys, Server, free_port, key

from container.system.loop import Loop
from estimators.backends.ssh.command import Destination, SshSettings, resolved
from estimators.backends.ssh.connection import Connections, Finished, SshConnection

pytestmark = pytest.mark.leaves("files")

Open = Callable[[Destination, SshSettings], "SshConnection | str"]


@pytest.fixture
def connect(loop: Loop, run_until: RunUntil) -> Iterator[Open]:
    """Connects, and gives the connection or why there is none."""
    opened: list[Connections] = []

    def connect(destination: Destination, settings: SshSettings) -> SshConnection | str:
        came: list[SshConnection | str] = []
        connections = Connections(loop, settings)
        opened.append(connections)
        connections.open(destination, came.append, came.append)
        run_until(lambda: came)
        return came[0]

    yield connect
    for connections in opened:
        connections.close()


@pytest.fixture
def there(server: Server) -> Destination:
    return Destination(host=server.address, port=server.port)


def run(
    connection: SshConnection | str, run_until: RunUntil, *argv: str, source: Path | bytes | None = None
) -> Finished:
    assert isinstance(connection, SshConnection), connection
    ended: list[Finished] = []
    connection.run(argv, ended.append, source=source)
    run_until(lambda: ended)
    return ended[0]


def test_words_arrive_as_they_are(
    connect: Open, run_until: RunUntil, there: Destination, settings: SshSettings
) -> None:
    connection = connect(there, settings)
    words = ["a b", "it's", '"$HOME"', "`id`", "*", "", "ü", "a\nb", "!x"]
    done = run(connection, run_until, "printf", "%s|", *words)
    assert (done.code, done.output.decode()) == (0, "".join(f"{word}|" for word in words))
    failed = run(connection, run_until, "sh", "-c", "echo why >&2; exit 3")
    assert (failed.code, failed.last_line) == (3, "why")
    assert run(connection, run_until, "no-such-program").code == 127


def test_files_and_bytes_go_in(
    connect: Open, run_until: RunUntil, there: Destination, settings: SshSettings, tmp_path: Path
) -> None:
    connection = connect(there, settings)
    data = os.urandom(3 << 20)
    (tmp_path / "data").write_bytes(data)
    for source in (tmp_path / "data", data, b""):
        wanted = data if source else b""
        assert run(connection, run_until, "cat", source=source).output == wanted
    assert run(connection, run_until, "cat").output == b""


def test_one_login_serves_all(connect: Open, run_until: RunUntil, keys: Keys, settings: SshSettings) -> None:
    server = Server(keys, "127.0.0.10")  # on which nobody else is about to leave
    try:
        run_until(lambda: not server.children())  # the one that looked whether it listens
        connection = connect(Destination(host=server.address, port=server.port), settings)
        for _ in range(3):
            run(connection, run_until, "true")
        assert len(server.children()) == 1
    finally:
        server.close()


def test_a_program_is_spoken_to_and_ends_with_its_input(
    connect: Open, run_until: RunUntil, there: Destination, settings: SshSettings, loop: Loop, tmp_path: Path
) -> None:
    connection = connect(there, settings)
    assert isinstance(connection, SshConnection)
    ends: list[tuple[int, int]] = []
    failures: list[Finished] = []
    program = (
        "import sys; print('first'); sys.stdout.flush()\nfor line in sys.stdin: print(line.upper(), end='', flush=True)"
    )
    program += f"\nopen({str(tmp_path / 'over')!r}, 'w')"
    connection.start([sys.executable, "-c", program], lambda *fds: ends.append(fds), failures.append)
    run_until(lambda: ends or failures)
    assert failures == []
    read, write = ends[0]
    os.set_blocking(read, True)
    os.write(write, b"hello\n")
    assert os.read(read, 6) + os.read(read, 100) in (b"first\nHELLO\n",)
    os.close(write)
    run_until((tmp_path / "over").exists)
    os.close(read)
    run_until(lambda: connection.ended)  # with the last one


def test_a_program_that_is_not_there_ends(
    connect: Open, run_until: RunUntil, there: Destination, settings: SshSettings
) -> None:
    connection = connect(there, settings)
    assert isinstance(connection, SshConnection)
    ends: list[tuple[int, int]] = []
    told: list[Finished] = []
    connection.start(["/no/such/program"], lambda *fds: ends.append(fds), told.append, on_end=told.append)
    run_until(lambda: told)
    assert told[0].code in (126, 127) and "not found" in told[0].errors
    for fd in ends[0]:
        os.close(fd)


def test_what_a_shell_prints_at_its_start_is_not_the_programs(
    loop: Loop, run_until: RunUntil, connect: Open, keys: Keys, settings: SshSettings, tmp_path: Path
) -> None:
    (tmp_path / ".bashrc").write_text("echo 'Welcome to the lab!'\nseq 20000\n")
    server = Server(keys, "127.0.0.3", more=f"SetEnv HOME={tmp_path}")
    try:
        connection = connect(Destination(host=server.address, port=server.port), settings)
        assert isinstance(connection, SshConnection)
        ends: list[tuple[int, int]] = []
        connection.start(["echo", "mine"], lambda *fds: ends.append(fds), lambda finished: ends.append((-1, -1)))
        run_until(lambda: ends)
        os.set_blocking(ends[0][0], True)
        assert os.read(ends[0][0], 100) == b"mine\n"
        for fd in ends[0]:
            os.close(fd)
    finally:
        server.close()


def test_a_key_that_changed_is_refused(connect: Open, run_until: RunUntil, keys: Keys, settings: SshSettings) -> None:
    server = Server(keys, "127.0.0.4")
    there = Destination(host=server.address, port=server.port)
    assert run(connect(there, settings), run_until, "true").code == 0
    assert f"[{server.address}]:{server.port} ssh-ed25519" in settings.known_hosts.read_text()
    server.close()
    host_key = next(keys.folder.glob("host-127.0.0.4-*[0-9]"))
    host_key.unlink()
    Path(f"{host_key}.pub").unlink()
    key(host_key)
    server.start()
    try:
        text = connect(there, settings)
        assert isinstance(text, str)
        assert "host key has changed" in text
        command = text.partition("`")[2].partition("`")[0]
        subprocess.run(command, shell=True, check=True, capture_output=True)  # the remedy as it is printed
        assert run(connect(there, settings), run_until, "true").code == 0
    finally:
        server.close()


def test_strict_takes_no_key_that_is_not_known(
    connect: Open, run_until: RunUntil, there: Destination, settings: SshSettings, keys: Keys
) -> None:
    strict = SshSettings(known_hosts=settings.known_hosts, config=settings.config, strict=True)
    text = connect(there, strict)
    assert isinstance(text, str)
    assert "is not known" in text
    public = next(keys.folder.glob(f"host-{there.host}-*.pub")).read_text()
    settings.known_hosts.write_text(f"i-0123 {public}")
    named = Destination(host=there.host, port=there.port, options={"HostKeyAlias": "i-0123"})
    assert run(connect(named, strict), run_until, "true").code == 0


def test_a_refused_login_says_what_to_do(
    connect: Open, there: Destination, settings: SshSettings, tmp_path: Path
) -> None:
    (tmp_path / "config").write_text(f"Host *\n  IdentitiesOnly yes\n  IdentityFile {key(tmp_path / 'other')}\n")
    text = connect(there, SshSettings(known_hosts=settings.known_hosts, config=tmp_path / "config"))
    assert isinstance(text, str)
    assert "the login was refused" in text and "ssh-copy-id" in text


def test_nobody_there_is_told_apart(connect: Open, settings: SshSettings) -> None:
    text = connect(Destination(host="127.0.0.5", port=free_port("127.0.0.5")), settings)
    assert isinstance(text, str) and "nothing listens" in text
    text = connect(Destination(host="no-such-host.invalid"), settings)
    assert isinstance(text, str) and "the name cannot be resolved" in text


def test_the_configuration_counts(
    connect: Open, run_until: RunUntil, there: Destination, keys: Keys, settings: SshSettings, tmp_path: Path
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
    assert run(connect(Destination(host="lab"), own), run_until, "echo", "hi").output == b"hi\n"
    assert resolved(own, Destination(host="lab"))["hostname"] == there.host
    config.write_text("Nonsense yes\n")
    text = connect(Destination(host="lab"), own)
    assert isinstance(text, str) and "ssh configuration is wrong" in text


def test_many_logins_at_once_come_through_a_narrow_door(
    loop: Loop, run_until: RunUntil, keys: Keys, settings: SshSettings
) -> None:
    """sshd drops logins at random from the second on, and all from the fourth."""
    server = Server(keys, "127.0.0.6", more="MaxStartups 2:50:4")
    connections = Connections(loop, settings)
    came: list[SshConnection | str] = []
    try:
        for _ in range(12):
            connections.open(Destination(host=server.address, port=server.port), came.append, came.append)
        run_until(lambda: len(came) == 12)
        assert [text for text in came if isinstance(text, str)] == []
    finally:
        connections.close()
        server.close()


def test_patience_waits_for_a_machine_that_starts(
    loop: Loop, run_until: RunUntil, keys: Keys, settings: SshSettings
) -> None:
    server = Server(keys, "127.0.0.7")
    server.close()
    connections = Connections(loop, settings)
    came: list[SshConnection | str] = []
    connections.open(Destination(host=server.address, port=server.port), came.append, came.append, patience=60)
    loop.call_later(0.5, server.start)
    try:
        run_until(lambda: came)
        assert isinstance(came[0], SshConnection), came
    finally:
        connections.close()
        server.close()


def test_a_connection_that_breaks_is_told_and_so_is_the_end_of_what_ran(
    connect: Open, run_until: RunUntil, keys: Keys, settings: SshSettings
) -> None:
    server = Server(keys, "127.0.0.8")
    connection = connect(Destination(host=server.address, port=server.port), settings)
    assert isinstance(connection, SshConnection)
    lost: list[str] = []
    connection.on_lost = lost.append
    ended: list[Finished] = []
    connection.run(["sleep", "1000"], ended.append)
    server.close()
    run_until(lambda: lost and ended)
    assert connection.ended == lost[0]


def test_without_its_master_nothing_connects_by_itself(
    connect: Open, run_until: RunUntil, there: Destination, settings: SshSettings
) -> None:
    connection = connect(there, settings)
    assert isinstance(connection, SshConnection)
    connection._socket.unlink()
    assert run(connection, run_until, "true").code == 255


@pytest.mark.soak
def test_a_link_that_hangs_is_noticed_in_15_s(
    connect: Open, run_until: RunUntil, keys: Keys, settings: SshSettings
) -> None:
    server = Server(keys, "127.0.0.9")
    connection = connect(Destination(host=server.address, port=server.port), settings)
    assert isinstance(connection, SshConnection)
    lost: list[str] = []
    connection.on_lost = lost.append
    stopped = server.children()
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        run_until(lambda: lost)
        assert "no sign of life" in lost[0]
    finally:
        server.close()


def test_nothing_is_left_of_it_here(
    loop: Loop, run_until: RunUntil, there: Destination, settings: SshSettings, own_temporary_folder: Path
) -> None:
    connections = Connections(loop, settings)
    came: list[SshConnection | str] = []
    connections.open(there, came.append, came.append)
    run_until(lambda: came)
    connection = came[0]
    assert isinstance(connection, SshConnection)
    master = connection._master
    assert master is not None
    connections.close()
    run_until(lambda: not Path(f"/proc/{master.pid}").exists())
    assert list(own_temporary_folder.glob("fleetfit-????????")) == []


def test_a_machine_without_ssh_is_told(
    connect: Open, there: Destination, settings: SshSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    text = connect(there, settings)
    assert isinstance(text, str) and "openssh-client" in text
