"""The processes of one host: real wrappers and commands, on one loop."""

from __future__ import annotations

import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import container
from container.contract import variables, wire
from container.contract.messages import encode
from container.contract.plan import ProcessPlan, Role
from container.system import folders
from container.system.loop import Loop
from container.toolkit.output import Output
from container.toolkit.process_group import ClusterProcess, Gang, GangFollower

pytestmark = pytest.mark.leaves("files")

PACKAGE = str(Path(container.__file__ or "").parent)
RunUntil = Callable[..., None]


class Host(GangFollower):
    """A gang, what it reported, and what it printed."""

    def __init__(self, loop: Loop, folder: Path) -> None:
        self._read, write = os.pipe()
        self._loop = loop
        self._printed = bytearray()
        os.set_blocking(self._read, False)
        loop.add_reader(self._read, self._take)
        self.output = Output(loop, write)
        os.close(write)
        self.folder = folders.make()
        self.log: list[tuple[str, str]] = []
        self.gang = Gang(
            loop,
            self.output,
            self,
            host="algo-1",
            runtime_dir=self.folder,
            environment={"PATH": os.environ["PATH"], "PWD": str(folder), "PYTHONPATH": f"{PACKAGE}/hook"},
            python=sys.executable,
            package=PACKAGE,
        )
        self.serving: list[ClusterProcess] = []

    def on_started(self, member: ClusterProcess) -> None:
        self.log.append(("started", member.name))

    def on_ended(self, member: ClusterProcess) -> None:
        self.log.append(("ended", member.name))

    def on_exception(self, member: ClusterProcess) -> None:
        self.log.append(("exception", member.name))

    def on_serving(self, member: ClusterProcess) -> None:
        self.serving.append(member)

    def _take(self) -> None:
        self._printed += os.read(self._read, 1 << 20)

    def launch(self, *argv: str, name: str = "rank 0") -> ClusterProcess:
        plan = ProcessPlan(name=name, host="algo-1", role=Role.RANK, argv=argv, rank=wire.rank_of(name))
        return self.gang.launch(plan)

    def printed(self, process: str = "rank 0") -> bytes:
        """What a process printed."""
        while True:
            try:
                self._take()
            except BlockingIOError:
                break
        lines = [wire.decode_line(line) for line in wire.split_pieces(bytearray(self._printed), final=True)]
        return b"".join(line.data for line in lines if isinstance(line, wire.Piece) and line.process == process)

    def close(self) -> None:
        self.gang.kill()
        self.gang.close()
        self._loop.remove_reader(self._read)
        os.close(self._read)
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()


@pytest.fixture
def host(loop: Loop, own_children: None, tmp_path: Path) -> Iterator[Host]:
    one = Host(loop, tmp_path)
    yield one
    one.close()


def test_a_command_is_started_followed_and_reported(host: Host, run_until: RunUntil) -> None:
    host.gang.environment[variables.USERS_OPEN_FILES] = "97"
    member = host.launch("sh", "-c", "ulimit -Sn; env >&2; printf rest; exit 0")
    run_until(lambda: member.ended)
    assert host.log == [("started", "rank 0"), ("ended", "rank 0")]
    assert (member.exit_code, member.signal, member.failed, member.told) == (0, None, False, False)
    host.gang.kill()
    assert host.printed().startswith(b"97\n") and host.printed().endswith(b"\nrest")
    assert b"PYTHONPATH=" in host.printed() and variables.USERS_OPEN_FILES.encode() not in host.printed()
    assert member.max_rss_kb is not None and member.max_rss_kb > 500


@pytest.mark.parametrize(("script", "end"), [("exit 3", (3, None)), ("kill -9 $$", (None, 9)), ("kill $$", (None, 15))])
def test_ends_are_told_as_they_are(script: str, end: tuple[int, int], host: Host, run_until: RunUntil) -> None:
    member = host.launch("sh", "-c", f"echo last words; {script}")
    absent = host.launch("/no/such/program", "x", name="rank 1")
    run_until(lambda: member.ended and absent.ended)
    assert (member.exit_code, member.signal) == end
    assert member.failed and not member.told and not member.vanished
    assert member.stream is not None and member.stream.tail == b"last words\n"
    assert absent.start_error == "No such file or directory: /no/such/program"
    assert (absent.exit_code, absent.pid) == (127, None) and ("started", "rank 1") not in host.log


def test_an_uncaught_exception_is_known_before_the_end(host: Host, run_until: RunUntil) -> None:
    member = host.launch(sys.executable, "-c", "raise ValueError('no data')")
    run_until(lambda: member.ended)
    assert host.log == [("started", "rank 0"), ("exception", "rank 0"), ("ended", "rank 0")]
    assert member.exception is not None
    assert (member.exception["pid"], member.exception["type"]) == (member.pid, "ValueError")
    assert member.exception["traceback"].endswith("ValueError: no data\n")


def test_a_signal_of_ours_reaches_the_command_and_holds_its_wrapper(host: Host, run_until: RunUntil) -> None:
    """While a job is being stopped mpirun must not see ranks end one by one: it would end the others."""
    script = (
        "import signal, sys, time\nsignal.signal(15, lambda n, f: (print('saved'), sys.exit(5)))\n"
        "print('ready', flush=True)\ntime.sleep(300)"
    )
    member = host.launch(sys.executable, "-c", script)
    run_until(lambda: b"ready" in host.printed())
    host.gang.signal_all(signal.SIGTERM)
    run_until(lambda: member.ended)
    assert member.exit_code == 5
    assert member.wrapper_pid is not None and Path(f"/proc/{member.wrapper_pid}").exists()
    host.gang.release()
    run_until(lambda: member.wrapper is None)
    assert b"saved" in host.printed()


def test_killing_ends_everything_and_takes_the_last_output(host: Host, run_until: RunUntil) -> None:
    members = [
        host.launch(
            "sh", "-c", f"trap '' TERM; printf 'here {number}'; setsid sleep 300 & sleep 300", name=f"rank {number}"
        )
        for number in range(3)
    ]
    run_until(lambda: all(b"here" in (m.stream.tail if m.stream else b"") for m in members))
    assert host.gang.kill() == []
    assert [host.printed(f"rank {number}") for number in range(3)] == [b"here 0", b"here 1", b"here 2"]
    assert not any(Path(f"/proc/{m.pid}").exists() for m in members)


def test_strangers_on_the_hosts_socket_do_no_harm(host: Host, run_until: RunUntil) -> None:
    member = host.launch("sleep", "300")
    run_until(lambda: member.running)
    gc.collect()  # what other tests have left; some of it may be closed later still
    descriptors = set(os.listdir("/proc/self/fd"))
    read, write = os.pipe()
    rank = {"op": "rank", "name": "rank 0", "pid": 1}
    for said, fds in (
        (b"", []),
        (b"x\n", []),
        (b"rank\nrank 0\n1", [read, write]),
        (encode(rank), []),
        (encode(rank), [read]),
        (encode(rank), [read, write]),  # there is one already
        (encode({**rank, "name": "rank 9"}), [read, write]),  # nobody expects it
        (encode({**rank, "pid": "1"}), [read, write]),
        (encode({**rank, "name": ["rank 0"]}), [read, write]),
        (encode({"op": "other"}), [read, write]),
        (b'{"op":"rsh"\n', []),
        (b"[]\n", []),
        (b"[" * 50_000 + b"\n", []),
        (encode({"op": "rsh"}), [read, write]),
        (encode({"op": "rsh", "host": "algo-2", "argv": "true"}), []),
    ):
        stranger = socket.socket(socket.AF_UNIX)
        stranger.connect(str(host.gang.socket_path))
        if said:
            socket.send_fds(stranger, [said], fds)
            stranger.setblocking(False)

            def let_go(stranger: socket.socket = stranger) -> bool:
                try:
                    return stranger.recv(10) == b""
                except BlockingIOError:
                    return False
                except ConnectionResetError:
                    return True

            run_until(let_go)
        stranger.close()
    os.close(read)
    os.close(write)
    for _ in range(5):
        host.gang._loop.run_once(0.01)
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) <= descriptors
    assert member.running and host.log == [("started", "rank 0")]


def test_a_harmless_warning_of_mpiruns_is_not_printed(host: Host, run_until: RunUntil) -> None:
    """Exactly that line: another number, or other words around it, may mean something."""
    warning = "[vm:07122] plm:rsh: Warning: setpgid(7128,7128) failed in parent with errno=Permission denied(13)"
    others = [warning.replace("denied(13)", "denied(1)"), f"{warning} again", f"so {warning}"]
    text = "\n".join([warning, *others, warning, ""])
    member = host.gang.launch_bare("mpirun", Role.LAUNCHER, ["printf", "%s", text], {})
    run_until(lambda: member.ended)
    assert host.printed("mpirun").decode().splitlines() == others


#: Says that it only serves, and waits.
SERVES = (
    "import os, time; fd = int(os.environ['FLEETFIT_EVENTS'].split(':')[0]); "
    'os.write(fd, b\'{"kind":"serving","data":{"pid":%d}}\\n\' % os.getpid()); time.sleep(60)'
)


@pytest.mark.parametrize(
    ("script", "serving"),
    [
        (None, True),
        ('"$PYTHON" -c "$SERVES"; true', True),
        ('"$PYTHON" -c "$SERVES" & exec sleep 60', False),
        ('sleep 60 & "$PYTHON" -c "$SERVES"; true', False),
    ],
    ids=["itself", "a shell waits for it", "a helper of the script", "one of several"],
)
def test_who_does_nothing_but_serve(script: str | None, serving: bool, host: Host, run_until: RunUntil) -> None:
    host.gang.environment.update(PYTHON=sys.executable, SERVES=SERVES)
    if script is None:
        member = host.launch(sys.executable, "-c", SERVES)
    else:
        command = ["/bin/sh", "-c", script]
        member = host.launch(*(["sh", *command[1:]] if "exec" in script else command))
    run_until(lambda: host.serving == [member])
    assert member.serving is serving
