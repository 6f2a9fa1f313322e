"""``agent host``: what stays on a host while it has a part in a job, and does there what the supervisor asks for.

It is started on the host, by ssh say, and speaks in frames over its standard input and output: files come and go, and
processes run, whose output goes back in its order. It listens nowhere, and needs the standard library only. When the
connection ends, or nothing comes over it any more, everything that it has started ends with it, and its folder goes.

What the supervisor says (``id`` names a transfer or a process on both ends):

* ``hello``: ``root`` (the job's folder here), ``silence`` (seconds without a sign of life), ``signals`` (whether to
  answer a signal that we get with ``signal`` and its ``number``, instead of ending); answered by ``hello`` with what
  the host is;
* ``push``: ``id``, ``target``; then ``data`` and ``end``; answered by ``done``;
* ``pull``: ``id``, ``source``; answered by ``data`` and ``end``;
* ``list``: ``id``, ``path``: which files are there; ``remove``: ``paths``; ``await``: ``id``, ``paths``;
* ``listen``: ``id``, ``address``: keeps a listening socket, for the next ``run`` that wants one;
* ``run``: ``id``, ``argv``, ``env``, ``cwd``; answered by ``started``, ``output`` and at the end ``exit``;
* ``input``: ``id``; ``close``: ``id``, the end of its input; ``signal``: ``id``, ``number``;
* ``abort``: ``spare``: SIGKILL to everything but some processes;
* ``ping``, which is answered by ``pong``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from container.agent.syncing import files_below
from container.contract.messages import Message
from container.system import folders, interfaces, processes
from container.system.background import Background
from container.system.host_machine import cpu_count, gpu_count
from container.system.link import Link
from container.system.loop import Loop
from container.system.removing import remove_tree
from container.system.transfer import Transfers

#: What both ends must agree in.
PROTOCOL = 1
#: How long what was started may take to end by itself when its inputs end, in seconds.
_GRACE_S = 0.5
_LOOK_S = 0.01
_READ_SIZE = 1 << 18


def main() -> int:
    """Serve until the connection ends.

    Returns:
        0.
    """
    # What is printed by mistake must not get among the frames.
    read, write = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    os.umask(0o077)
    processes.become_subreaper()
    resident = _Resident(Loop(), read, write)
    resident.run()
    return 0


class _Resident:
    def __init__(self, loop: Loop, read: int, write: int) -> None:
        self._loop = loop
        self._background = Background(loop)
        self._root: Path | None = None
        self._link = Link(loop, read, write, self._received, lambda reason: self._end())
        self._transfers = Transfers(loop, self._link, self._background, lambda: self._folder)
        self._running: dict[int, _Process] = {}
        self._listener: socket.socket | None = None
        self._heard = time.monotonic()
        self._silence = 60.0
        self._ending = False
        self._tells = False  # of signals
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            loop.on_signal(number, functools.partial(self._signalled, number))
        self._watch()

    @property
    def _folder(self) -> Path:
        assert self._root is not None  # the first thing that is said
        return self._root

    def run(self) -> None:
        self._loop.run()
        processes.end_descendants()
        for process in self._running.values():
            process.tidy()
        if self._root is not None:
            remove_tree(self._root, ignore_errors=True)
            for above in list(self._root.parents)[:2]:  # the job's, when this was its last host here
                with contextlib.suppress(OSError):
                    above.rmdir()

    def _signalled(self, number: int) -> None:
        if self._tells:
            self._link.send({"op": "signal", "number": int(number)})
        else:
            self._end()

    def _watch(self) -> None:
        """Whoever is silent for long is gone: a link that is cut tells nobody."""
        if time.monotonic() - self._heard > self._silence:
            self._end()
        self._loop.call_later(min(self._silence / 4, 5.0), self._watch)

    def _end(self) -> None:
        """The supervisor is gone, or wants nothing more."""
        if self._ending:
            return
        self._ending = True
        self._link.close()
        for process in self._running.values():
            process.close_input()
        until = time.monotonic() + _GRACE_S

        def look() -> None:
            if not self._running or time.monotonic() > until:
                self._loop.stop()
            else:
                self._loop.call_later(_LOOK_S, look)

        look()

    # --- what is said ---

    def _received(self, message: Message, body: bytes) -> None:
        self._heard = time.monotonic()
        operation, number = message["op"], message.get("id", 0)
        try:
            if operation == "ping":
                self._link.send({"op": "pong"})
            elif operation == "data":
                self._transfers.data(number, body)
            elif operation == "end":
                self._transfers.end(number, message.get("error"))
            elif operation == "input":
                if (process := self._running.get(number)) is not None:
                    process.write(body)
            elif operation == "close":
                if (process := self._running.get(number)) is not None:
                    process.close_input()
            elif operation == "signal":
                if (process := self._running.get(number)) is not None:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(process.pid, int(message["number"]))
            elif operation == "hello":
                self._hello(message)
            elif operation == "push":
                self._transfers.expect(number, self._place(message["target"]), self._answer(number))
            elif operation == "pull":
                self._transfers.send(number, [(self._place(message["source"]), "")], follow=False)
            elif operation == "list":
                found = {
                    name: [status.st_size, status.st_mtime_ns]
                    for name, status in files_below(self._place(message["path"]))
                }
                self._link.send({"op": "done", "id": number, "files": found})
            elif operation == "remove":
                for path in message["paths"]:
                    remove_tree(self._place(path), ignore_errors=True)
            elif operation == "await":
                self._await([self._place(path) for path in message["paths"]], self._answer(number))
            elif operation == "listen":
                self._listen(number, str(message["address"]))
            elif operation == "run":
                self._run(number, message)
            elif operation == "abort":
                spared = {self._running[spare].pid for spare in message["spare"] if spare in self._running}
                self._loop.end_descendants(spare=spared)
        except (OSError, ValueError, KeyError, TypeError) as error:
            self._link.send({"op": "done", "id": number, "error": f"{operation}: {error}"})

    def _hello(self, message: Message) -> None:
        self._silence = float(message["silence"])
        self._tells = bool(message.get("signals"))
        root = str(message["root"])
        if not os.path.isabs(root):
            root = os.path.join(tempfile.gettempdir(), f"fleetfit-hosts-{os.getuid()}", root)
        self._root = Path(root)
        self._root.mkdir(mode=0o700, parents=True, exist_ok=True)
        facts = {
            "root": root,
            "python": sys.executable,
            "python_version": ".".join(map(str, sys.version_info[:3])),
            "package": str(Path(__file__).resolve().parents[1]),
            "hostname": socket.gethostname(),
            "cpus": cpu_count(),
            "gpus": gpu_count(),
            "processor": platform.machine(),
            "interfaces": {name: str(address.ip) for name, address in interfaces.addresses().items()},
        }
        self._link.send({"op": "hello", "protocol": PROTOCOL, **facts})

    def _place(self, path: str) -> Path:
        """A path below the job's folder."""
        place = Path(os.path.normpath(self._folder / path))
        if not place.is_relative_to(self._folder):
            raise ValueError(f"{path!r} is not in the job's folder")
        return place

    def _answer(self, number: int) -> Callable[[str | None], None]:
        return lambda error: self._link.send({"op": "done", "id": number, **({"error": error} if error else {})})

    def _await(self, paths: Sequence[Path], answer: Callable[[str | None], None]) -> None:
        if all(path.exists() for path in paths):
            answer(None)
        elif not self._ending:
            self._loop.call_later(_LOOK_S, lambda: self._await(paths, answer))

    def _listen(self, number: int, address: str) -> None:
        if self._listener is not None:
            self._listener.close()
        self._listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._listener.bind((address, 0))
        self._listener.listen(128)
        self._link.send({"op": "done", "id": number, "port": self._listener.getsockname()[1]})

    # --- processes ---

    def _run(self, number: int, message: Message) -> None:
        env = {**os.environ, **{str(name): str(value) for name, value in message["env"].items()}}
        cwd = self._place(message.get("cwd", ""))
        cwd.mkdir(mode=0o700, parents=True, exist_ok=True)
        input_read, input_write = os.pipe()
        output_read, output_write = os.pipe()
        errors_read, errors_write = os.pipe() if message.get("apart") else (-1, output_write)
        passed = []
        lifeline = message.get("lifeline")
        if lifeline:  # the variable in which the process looks for the number of its lifeline
            env[lifeline] = str(input_read)
            passed.append(input_read)
        runtime: Path | None = None
        if message.get("runtime"):
            runtime = folders.make() / "host"
            runtime.mkdir(mode=0o700)
            env[str(message["runtime"])] = str(runtime)
        listener = self._listener if message.get("listener") else None
        if listener is not None:
            self._listener = None
            env[str(message["listener"])] = str(listener.fileno())
            passed.append(listener.fileno())
        try:
            pid = processes.spawn(
                [str(word) for word in message["argv"]],
                env=env,
                cwd=cwd,
                stdin=None if lifeline else input_read,
                stdout=output_write,
                stderr=errors_write,
                pass_fds=passed,
                death_signal=0 if lifeline else signal.SIGKILL,
                new_session=bool(message.get("session")),
                new_group=True,
            )
        except OSError as error:
            for fd in (input_write, output_read, errors_read):
                if fd >= 0:
                    os.close(fd)
            self._link.send({"op": "exit", "id": number, "error": f"{error.filename or ''}: {error.strerror}"})
            return
        finally:
            for fd in {input_read, output_write, errors_write}:
                os.close(fd)
            if listener is not None:
                listener.close()
        process = self._running[number] = _Process(self._loop, pid, input_write, runtime)
        self._link.send({"op": "started", "id": number, "pid": pid})
        for fd, extra in ((output_read, {}), (errors_read, {"errors": True})):
            if fd >= 0:
                self._follow(process, fd, {"op": "output", "id": number, **extra})
        leads = bool(lifeline)
        self._loop.on_child(pid, lambda status: self._ended(number, process, status, leads=leads))

    def _follow(self, process: _Process, fd: int, message: Message) -> None:
        os.set_blocking(fd, False)

        def read() -> bool:
            try:
                data = os.read(fd, _READ_SIZE)
            except BlockingIOError:
                return False
            if data:
                self._link.send(message, data)
                return True
            close()
            return False

        def close() -> None:
            if fd in process.outputs:
                del process.outputs[fd]
                self._link.remove_source(fd)
                os.close(fd)

        def read_one() -> None:
            read()

        process.outputs[fd] = (read, close)
        self._link.add_source(fd, read_one)

    def _ended(self, number: int, process: _Process, status: int, *, leads: bool) -> None:
        exit_code, killed_by = processes.decode_status(status)
        del self._running[number]
        process.close_input()
        if leads and killed_by is not None:
            # It could not end what it had started; that was adopted by us, its subreaper.
            self._loop.end_descendants(spare={other.pid for other in self._running.values()})
        for read, close in list(process.outputs.values()):
            while read():
                pass
            close()
        process.tidy()
        self._link.send({"op": "exit", "id": number, "code": exit_code, "signal": killed_by})


class _Process:
    """A process that was started here.

    Attributes:
        outputs: Descriptor -> what reads a piece of it, and what closes it.
    """

    def __init__(self, loop: Loop, pid: int, input_fd: int, runtime: Path | None) -> None:
        self._loop = loop
        self.pid = pid
        self._runtime = runtime
        self._input = input_fd
        self._unwritten = bytearray()
        self._closing = False
        self.outputs: dict[int, tuple[Callable[[], bool], Callable[[], None]]] = {}
        os.set_blocking(input_fd, False)

    def write(self, data: bytes) -> None:
        """Give it something to read."""
        if self._input >= 0:
            self._unwritten += data
            self._flush()

    def _flush(self) -> None:
        try:
            while self._unwritten:
                with memoryview(self._unwritten) as view:
                    written = os.write(self._input, view)
                del self._unwritten[:written]
        except BlockingIOError:
            self._loop.add_writer(self._input, self._flush)
            return
        except OSError:  # it reads no more
            self._unwritten.clear()
        self._loop.remove_writer(self._input)
        if self._closing:
            self._close()

    def tidy(self) -> None:
        """Remove what it has left of its private folder."""
        if self._runtime is not None:
            made = self._runtime.parent
            remove_tree(made, ignore_errors=True)
            remove_tree(Path(folders.SHARED_MEMORY, f"{made.name}-{self._runtime.name}"), ignore_errors=True)

    def close_input(self) -> None:
        """End what it reads."""
        self._closing = True
        if self._input >= 0 and not self._unwritten:
            self._close()

    def _close(self) -> None:
        if self._input >= 0:
            self._loop.remove_writer(self._input)
            os.close(self._input)
            self._input = -1
