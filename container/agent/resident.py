"""Serve a supervisor's requests on a host while the host takes part in a job (``agent host``).

The supervisor is the process that controls the job. This program, the agent, is started on the host, for example with
ssh. The agent exchanges frames with the supervisor over standard input and output. It transfers files, runs processes,
and sends their output to the supervisor in order. The agent does not listen on any port, and needs only the standard
library. When the connection to the supervisor ends, or is silent for too long, the agent terminates all processes that
it has started, and removes the job's folder. With ``--lifeline FD``, another program reserves the host, and holds the
other end of the connection FD. The agent does the same when that program closes its end.

The supervisor's messages (``id`` names a transfer or a process on both sides):

* ``hello``: ``root`` (the job's folder here), ``silence`` (time limit without a message, in seconds), ``signals``
  (if true, the agent reports each signal that it receives in a message ``signal`` with its ``number``; if false, a
  signal ends the agent). The answer is ``hello`` with facts about the host;
* ``push``: ``id``, ``target``: announce an archive of files, which follows in messages ``data`` and ``end``. The agent
  unpacks the archive into ``target``; answered by ``done``;
* ``pull``: ``id``, ``source``: request the files of the folder ``source``; answered by ``data`` and ``end``;
* ``list``: ``id``, ``path``: list the files below this folder; answered by ``done``;
* ``remove``: ``paths``: remove these folders; not answered;
* ``await``: ``id``, ``paths``: answer ``done`` when all of these paths exist;
* ``listen``: ``id``, ``address``: open a listening socket, for the next ``run`` that needs one; answered by
  ``done`` with the ``port``;
* ``reach``: ``id``, ``address``, ``port``: try to connect to this address; answered by ``done``;
* ``run``: ``id``, ``argv``, ``env``, ``cwd``, and optional arguments of :meth:`container.system.running.Runner.run`:
  start a process; answered by ``output``, and at the process's end by ``exit``;
* ``input``: ``id``: write the bytes that follow the message to the process's standard input;
* ``close``: ``id``: close the process's standard input;
* ``signal``: ``id``, ``number``: send a signal to the process;
* ``abort``: ``spare``: send SIGKILL to all processes except the processes with the ids in ``spare``;
* ``ping``, which is answered by ``pong``.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from container.contract.messages import Message
from container.system import interfaces, processes, saved
from container.system.background import Background
from container.system.host_machine import identity
from container.system.link import HostLink
from container.system.loop import SelectorLoop
from container.system.removing import remove_tree
from container.system.running import ProcessEnd, Runner, RunningProcess
from container.system.transfer import Transfers

#: Version of the protocol, which must be the same on both sides.
PROTOCOL = 1
#: How long processes may take to end by themselves after the end of their inputs, in seconds.
_GRACE_S = 0.5
_LOOK_S = 0.01
#: Time limit of a connection to another host, in seconds.
_REACH_S = 3.0
#: Number of attempts to create the job's folder.
_TRIES = 100


def main(argv: Sequence[str] = ()) -> int:
    """Serve the supervisor's requests until the connection ends.

    Returns:
        0 on success. 2 if the command line is invalid.
    """
    if argv and not (len(argv) == 2 and argv[0] == "--lifeline" and argv[1].isdecimal()):
        print(f"usage: python -m container agent host [--lifeline FD]; got {list(argv)}", file=sys.stderr)
        return 2
    # Text that is printed by mistake must not get between the frames.
    read, write = os.dup(0), os.dup(1)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    os.umask(0o077)
    processes.become_subreaper()
    resident = _Resident(SelectorLoop(), read, write, int(argv[1]) if argv else None)
    resident.run()
    return 0


class _Resident:
    def __init__(self, loop: SelectorLoop, read: int, write: int, lifeline: int | None = None) -> None:
        self._loop = loop
        self._background = Background(loop)
        self._root: Path | None = None
        self._shared: Path | None = None  # the folder of all jobs of this user
        self._link = HostLink(loop, read, write, self)
        self._transfers = Transfers(self._link, self._background)
        self._kept: set[int] = set()  # processes with imported packages (importers), which are kept for the next job
        self._runner = Runner(loop, os.environ, protected=self._kept, readers=self._link)
        self._running: dict[int, RunningProcess] = {}
        self._heard = time.monotonic()
        self._silence = 60.0
        self._ending = False
        self._tells = False  # whether to report signals to the supervisor
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2):
            loop.add_signal_handler(number, functools.partial(self._signalled, number))
        if lifeline is not None:
            os.set_inheritable(lifeline, False)
            loop.add_reader(lifeline, lambda: self._lifeline_ended(lifeline))
        self._watch()

    @property
    def _folder(self) -> Path:
        assert self._root is not None  # the supervisor's first message, "hello", sets it
        return self._root

    def run(self) -> None:
        self._loop.run()
        processes.end_descendants(spare=self._kept)
        for process in self._running.values():
            process.tidy()
        self._runner.close()
        self._transfers.close()  # otherwise transfers would recreate folders that are being removed
        if self._root is not None:
            remove_tree(self._root, ignore_errors=True)
            # Also remove the job's folders and the folder of all jobs, unless other hosts use the folders.
            for above in [*list(self._root.parents)[:2], *filter(None, [self._shared])]:
                with contextlib.suppress(OSError):
                    above.rmdir()

    def _signalled(self, number: int) -> None:
        if self._tells:
            self._link.send({"op": "signal", "number": int(number)})
        else:
            self._end()

    def _lifeline_ended(self, lifeline: int) -> None:
        """Stop the job's processes after the program that reserves the host has closed its end of the lifeline.

        This process's own end stays open until this process exits, after the job's processes have been stopped.
        Therefore the program that reserves the host can wait for the end of the lifeline.
        """
        self._loop.remove_reader(lifeline)
        self._end()

    def _watch(self) -> None:
        """Stop the job's processes if the supervisor has been silent for too long.

        The silence is measured because the operating system does not report an interrupted network connection.
        """
        if time.monotonic() - self._heard > self._silence:
            self._end()
        self._loop.call_later(min(self._silence / 4, 5.0), self._watch)

    def _end(self) -> None:
        """Close the connection and the processes' inputs. Stop the event loop when the processes have ended, or after a
        short time.
        """
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

    # --- messages ---

    def closed(self, reason: str) -> None:
        """Handle the end of the connection (see :class:`container.system.link.LinkHandler`)."""
        self._end()

    def received(self, message: Message, body: bytes) -> None:
        """Handle a message of the supervisor (see :class:`container.system.link.LinkHandler`)."""
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
                    process.signal(int(message["number"]))
            elif operation == "hello":
                self._hello(message)
            elif operation == "push":
                self._transfers.expect(number, self._place(message["target"]), functools.partial(self._answer, number))
            elif operation == "pull":
                self._transfers.send(number, [(self._place(message["source"]), "")], follow=False)
            elif operation == "list":
                found = saved.files_below(self._place(message["path"]))
                self._link.send({"op": "done", "id": number, "files": found})
            elif operation == "remove":
                for path in message["paths"]:
                    remove_tree(self._place(path), ignore_errors=True)
            elif operation == "await":
                paths = [self._place(path) for path in message["paths"]]
                self._await_files(paths, number)
            elif operation == "listen":
                port = self._runner.listen(str(message["address"]))
                self._link.send({"op": "done", "id": number, "port": port})
            elif operation == "reach":
                self._reach(number, str(message["address"]), int(message["port"]))
            elif operation == "run":
                self._run(number, message)
            elif operation == "abort":
                self._runner.abort([self._running[spare] for spare in message["spare"] if spare in self._running])
        except (OSError, ValueError, KeyError, TypeError) as error:
            if operation == "hello":
                self._link.send({"op": "hello", "protocol": PROTOCOL, "error": str(error)})
            else:
                self._link.send({"op": "done", "id": number, "error": f"{operation}: {error}"})

    def _hello(self, message: Message) -> None:
        self._silence = float(message["silence"])
        self._tells = bool(message.get("signals"))
        root = self._make_root(Path(message["root"]))
        facts = {
            "root": str(root),
            "python": sys.executable,
            "python_version": ".".join(map(str, sys.version_info[:3])),
            "package": str(Path(__file__).resolve().parents[1]),
            "interfaces": {name: str(address.ip) for name, address in interfaces.addresses().items()},
            "identity": identity(),
        }
        self._link.send({"op": "hello", "protocol": PROTOCOL, **facts})

    def _make_root(self, root: Path) -> Path:
        """Create the job's folder, and return its absolute path.

        Args:
            root: The path of the job's folder. A relative path is below a folder that all of this user's jobs share.

        Raises:
            OSError: the folder cannot be created, or the shared folder belongs to another user.
        """
        shared = None if root.is_absolute() else Path(tempfile.gettempdir()) / f"fleetfit-hosts-{os.getuid()}"
        if shared is not None:
            root = shared / root
        for left in reversed(range(_TRIES)):  # another agent may remove a parent folder that is empty
            try:
                if shared is not None:
                    shared.mkdir(mode=0o700, exist_ok=True)
                    if {shared.lstat().st_uid, shared.stat().st_uid} != {os.getuid()}:  # also of a link
                        raise PermissionError(f"{shared} belongs to another user")
                self._root, self._shared = root, shared  # from now on, run() removes both folders at its end
                root.mkdir(mode=0o700, parents=True, exist_ok=True)
                break
            except (FileNotFoundError, FileExistsError):
                if not left:
                    raise
        self._transfers.folder = root
        return root

    def _place(self, path: str) -> Path:
        """Return a path below the job's folder.

        Raises:
            ValueError: the path is outside of the job's folder.
        """
        place = Path(os.path.normpath(self._folder / path))
        if not place.is_relative_to(self._folder):
            raise ValueError(f"{path!r} is not in the job's folder")
        return place

    def _answer(self, number: int, error: str | None) -> None:
        self._link.send({"op": "done", "id": number, **({"error": error} if error else {})})

    def _await_files(self, paths: Sequence[Path], number: int) -> None:
        if all(path.exists() for path in paths):
            self._link.send({"op": "done", "id": number})
        elif not self._ending:
            self._loop.call_later(_LOOK_S, lambda: self._await_files(paths, number))

    def _reach(self, number: int, address: str, port: int) -> None:
        def failed(error: Exception) -> None:
            self._answer(number, (error.strerror if isinstance(error, OSError) else None) or str(error))

        self._background.run(
            lambda: socket.create_connection((address, port), timeout=_REACH_S).close(),
            lambda nothing: self._answer(number, None),
            failed,
        )

    # --- processes ---

    def _run(self, number: int, message: Message) -> None:
        cwd = self._place(message.get("cwd", ""))
        cwd.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._running[number] = self._runner.run(
            [str(word) for word in message["argv"]],
            {str(name): str(value) for name, value in message["env"].items()},
            _Follower(self._link, self._running, number),
            cwd=cwd,
            apart=bool(message.get("apart")),
            lifeline=message.get("lifeline"),
            listener=message.get("listener"),
            runtime=message.get("runtime"),
            session=bool(message.get("session")),
            tidies=bool(message.get("tidies")),
        )


class _Follower:
    """A follower that sends the output and the exit status of one process to the supervisor.

    See :class:`container.system.running.OutputFollower`.
    """

    def __init__(self, link: HostLink, running: dict[int, RunningProcess], number: int) -> None:
        self._link = link
        self._running = running
        self._number = number

    def on_output(self, data: bytes) -> None:
        self._link.send({"op": "output", "id": self._number}, data)

    def on_errors(self, data: bytes) -> None:
        self._link.send({"op": "output", "id": self._number, "errors": True}, data)

    def over(self, end: ProcessEnd) -> None:
        del self._running[self._number]
        said = {"op": "exit", "id": self._number, "code": end.exit_code, "signal": end.signal, "error": end.error}
        self._link.send(said)
