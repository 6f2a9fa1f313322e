"""The host's importer: a Python that has imported what the script will import, and is forked into each rank.

The toolkit starts the rank's own command, ``python train.py …``, with :data:`VARIABLE` in its environment. While the
interpreter starts, ``sitecustomize`` beside this file calls :func:`serve`, which imports what the toolkit has read from
the script's source and forks a process for every rank wrapper that asks (:mod:`container.toolkit.importer.client`). The
importer itself never leaves :func:`serve`; a forked process returns from it, and the interpreter goes on to run the
script as it would have: the same command line, ``__main__``, traceback, exit functions and exit code.

What could tell the difference is looked for, and then there is no importer, or this one rank is not forked from it:
see :meth:`Surroundings.refusal` and :func:`_unfit`.

It runs under the toolkit's own interpreter only. Nothing of ours can be imported here.
"""

import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import time
import warnings

#: Where the toolkit says that this process is to be the importer: ``LISTENER:PLAN``, two descriptors. The plan is JSON
#: with ``settings`` ([[name, value, whether only if it is not set], …]), ``statements`` (imports), ``names`` (modules
#: of the project's), and ``servers``, the command of parameter servers, empty where there are none.
VARIABLE = "FLEETFIT_IMPORTER"  # container.contract.variables.IMPORTER

#: Variables that may differ between the importer and a rank: nothing is known to look at them at its import. What is
#: seen to be looked at by Python code is compared whatever it is called.
_HARMLESS = frozenset(
    (
        "CUDA_VISIBLE_DEVICES",  # by the driver, when it is initialized; who has opened a GPU forks nothing
        "DYLD_LIBRARY_PATH",  # another system's
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "HFI_NO_BACKTRACE",
        "IPATH_NO_BACKTRACE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "OLDPWD",
        "PSM_DEVICES",
        "PWD",
        "RANK",
        "ROLE_NAME",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "SHLVL",
        "TF_CONFIG",
        "TMPDIR",
        "WORLD_SIZE",
        "_",
    )
)
_LISTS = ("LD_LIBRARY_PATH", "PATH")
_HARMLESS_PREFIXES = (
    *("FLEETFIT_", "HOROVOD_", "NCCL_", "OMPI_", "ORTE_", "PMIX_", "PMI_", "PRTE_", "SLURM", "SM_"),
    "TORCHELASTIC_",
)

#: What ``python -m container serve`` sets before it imports TensorFlow, where the environment does not.
_SERVERS_SETTINGS = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}

_PR_SET_PDEATHSIG = 1
#: What modules may print while they are imported, in bytes; each rank repeats it.
_PRINTED_LIMIT = 1 << 18
_NO_COLLECTION = 1 << 30
_REQUEST_LIMIT = 64 << 20
_READ_SIZE = 1 << 16
_DESCRIPTORS = 3

_libc = ctypes.CDLL(None)

#: The environment that this interpreter was started with, as far as a rank is to have it.
_AT_START = {name: value for name, value in os.environ.items() if name != VARIABLE}


class Unfit(Exception):
    """No rank can be forked from this process; the message says why."""


def serve():  # type: ignore[no-untyped-def]
    """Import, and fork ranks until the toolkit ends this process.

    Returns:
        The ``fd:inode`` for events, in a process that is to go on as a rank. The importer never returns.
    """
    importer = os.getpid()
    toolkit = os.dup(1)
    try:
        fd, _, plan_fd = os.environ.pop(VARIABLE).partition(":")
        listener = socket.socket(fileno=int(fd))
        with os.fdopen(int(plan_fd), "rb") as file:
            plan = json.loads(file.read())
        began = time.monotonic()
        surroundings = _import(plan, toolkit)
        _tell(
            toolkit,
            {
                "imported": sorted({text.split()[1] for text in plan["statements"]}),
                "seconds": round(time.monotonic() - began, 3),
            },
        )
        printed = os.pread(2, _PRINTED_LIMIT, 0)
        request, passed = _Server(listener, surroundings, toolkit, plan["servers"]).run()
        os.close(toolkit)
        target = _become(request, passed, surroundings.changed, printed)
        if request["argv"] != sys.orig_argv:
            _run_program(request["argv"])
        return target
    except Unfit as error:
        _tell(toolkit, {"unfit": str(error)})
    except BaseException as error:  # noqa: BLE001 - this process must not go on to run the script
        if os.getpid() == importer:
            _tell(toolkit, {"unfit": f"{type(error).__name__}: {error}"})
        else:
            os.write(2, f"the process that was forked for this rank failed: {error!r}\n".encode())
    os._exit(1)


def _tell(toolkit, message):  # type: ignore[no-untyped-def]
    with contextlib.suppress(OSError):  # it is gone
        os.write(toolkit, json.dumps(message).encode() + b"\n")


# --- before: import ---


class _Environment(dict):
    """``os.environ``'s own dict, which notes what is looked at.

    Attributes:
        seen: The names that were looked at, as bytes.
        whole: Whether all of it was.
    """

    def __init__(self, values):  # type: ignore[no-untyped-def]
        super().__init__(values)
        self.seen = set()
        self.whole = False

    def __getitem__(self, name):  # type: ignore[no-untyped-def]
        self.seen.add(name)
        return super().__getitem__(name)

    def __contains__(self, name):  # type: ignore[no-untyped-def]
        self.seen.add(name)
        return super().__contains__(name)

    def __iter__(self):  # type: ignore[no-untyped-def]
        self.whole = True
        return super().__iter__()

    def get(self, name, default=None):  # type: ignore[no-untyped-def]
        self.seen.add(name)
        return super().get(name, default)


class _NotTheProjects:
    """Refuses modules that the script's folder has a file for: its code is the rank's alone to run.

    It tells the toolkit now and then that modules are imported, which under load may take long in silence.

    Args:
        names: The modules that lie in the folder.
        toolkit: Where it is told.
    """

    def __init__(self, names, toolkit):  # type: ignore[no-untyped-def]
        self._names = frozenset(names)
        self._toolkit = toolkit
        self._next = 0.0
        self._seen = set()
        self.asked_for = ""

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name not in self._seen:  # what is tried again and again is no progress
            self._seen.add(name)
            if time.monotonic() >= self._next:
                self._next = time.monotonic() + 1.0
                _tell(self._toolkit, {"importing": name})
        if path is None and name in self._names:
            self.asked_for = name  # whoever asks may take any exception for the module's absence
            raise ImportError(f"the script's folder has a module {name}")


def _import(plan, toolkit):  # type: ignore[no-untyped-def]
    """Do what the plan says, with what is printed kept in standard error, a file in memory.

    Returns:
        What the imports had to do with the environment.

    Raises:
        Unfit: a rank that is forked from here would notice.
    """
    kept = os.memfd_create("printed")
    os.dup2(kept, 1, inheritable=True)
    os.dup2(kept, 2, inheritable=True)
    os.close(kept)
    if clash := sorted(set(plan["names"]).intersection(name.partition(".")[0] for name in sys.modules)):
        raise Unfit(f"the script's folder has a module {clash[0]}")
    opened = _descriptors()
    for name, value, default in plan["settings"]:  # as the script will, before it imports
        if not default or name not in os.environ:
            os.environ[name] = value
    after_settings = dict(os.environ)
    values = os.environ._data  # type: ignore[attr-defined]
    finder = _NotTheProjects(plan["names"], toolkit)
    sys.meta_path.insert(0, finder)
    thresholds = gc.get_threshold()
    gc.set_threshold(_NO_COLLECTION)  # what modules make at their import stays: collecting takes a fifth of the time
    noted = _Environment(values)
    os.environ._data = noted  # type: ignore[attr-defined]
    try:
        scratch = {"__name__": "fleetfit", "__builtins__": __builtins__}
        for statement in plan["statements"]:
            exec(compile(statement, "<importer>", "exec"), scratch)  # import statements, nothing else
    except Exception as error:
        raise Unfit(f"{type(error).__name__}: {error}") from error
    finally:
        if gc.get_threshold()[0] == _NO_COLLECTION:
            gc.set_threshold(*thresholds)
        sys.meta_path.remove(finder)
        values.clear()
        values.update(list(noted.items()))  # which looks at none by its name
        os.environ._data = values  # type: ignore[attr-defined]
    if finder.asked_for:
        raise Unfit(f"the script's folder has a module {finder.asked_for}")
    _unfit(opened)
    names = {*after_settings, *os.environ}
    changed = {name: os.environ.get(name) for name in names if after_settings.get(name) != os.environ.get(name)}
    return Surroundings(_AT_START, after_settings, {os.fsdecode(name) for name in noted.seen}, noted.whole, changed)


def _unfit(opened):  # type: ignore[no-untyped-def]
    """Look at what a fork would not copy, or would share.

    Args:
        opened: The descriptors that were open before the imports.

    Raises:
        Unfit: something is there.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()  # numerical libraries end their threads for a fork, and start them again when they are needed
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    if len(os.listdir("/proc/self/task")) > 1:
        raise Unfit("a module starts threads when it is imported")
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        if file.read().strip():
            raise Unfit("a module starts processes when it is imported")
    if any(any(signal.getitimer(timer)) for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)):
        raise Unfit("a module sets a timer when it is imported")
    if sys.gettrace() is not None or sys.getprofile() is not None or "coverage" in sys.modules:
        raise Unfit("the script is traced")
    for fd, path in _descriptors().items():
        if opened.get(fd) != path and path not in ("/dev/null", "/dev/urandom", "/dev/random"):
            raise Unfit(f"a module opens {path} when it is imported")
    if os.fstat(2).st_size > _PRINTED_LIMIT:
        raise Unfit("the imports print too much")


def _descriptors():  # type: ignore[no-untyped-def]
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one by which they were listed
            found[int(name)] = os.readlink("/proc/self/fd/" + name)
    return found


# --- while: serve ---


class Surroundings:
    """What the imports had to do with the environment.

    Args:
        environment: As it was before.
        settings: As it was with the script's settings.
        seen: The names of variables that were looked at.
        whole: Whether all of it was looked at.
        changed: The variables that modules have set, None for those that they have removed.
    """

    def __init__(self, environment, settings, seen, whole, changed):  # type: ignore[no-untyped-def]
        self._environment = environment
        self.set = settings
        self._seen = seen
        self._whole = whole
        self.changed = changed

    def refusal(self, theirs):  # type: ignore[no-untyped-def]
        """Return why a rank with another environment is not to be forked; None if it can be. Pure.

        Args:
            theirs: The rank's environment.
        """
        for name in sorted({*self._environment, *theirs}):
            mine, other = self._environment.get(name), theirs.get(name)
            if mine == other or (name in _LISTS and _entries(mine) == _entries(other)):
                continue
            harmless = name in _HARMLESS or name.startswith(_HARMLESS_PREFIXES)
            if not harmless or self._whole or name in self._seen:
                return f"{name} differs"
        return None


def _entries(value):  # type: ignore[no-untyped-def]
    """What is looked through, in its order: mpirun puts the same folder in front several times."""
    return list(dict.fromkeys((value or "").split(os.pathsep)))


class _Rank:
    """A wrapper's connection, and the process that was forked for it."""

    def __init__(self, sock):  # type: ignore[no-untyped-def]
        self.socket = sock
        self.buffer = b""
        self.passed = []
        self.pid = 0

    def send(self, message):  # type: ignore[no-untyped-def]
        with contextlib.suppress(OSError):  # it is gone, which is noticed when it is read
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def close(self):  # type: ignore[no-untyped-def]
        for fd in self.passed:
            os.close(fd)
        self.socket.close()


class _Server:
    """Takes wrappers' requests.

    Args:
        listener: Where they connect.
        surroundings: What :func:`_import` returned.
        toolkit: Where what happens is told.
        servers: The command of parameter servers.
    """

    def __init__(self, listener, surroundings, toolkit, servers):  # type: ignore[no-untyped-def]
        self._toolkit = toolkit
        self._servers = servers
        self._listener = listener
        self._surroundings = surroundings
        self._ranks = {}
        self._poll = select.poll()

    def run(self):  # type: ignore[no-untyped-def]
        """Fork a rank for each request that can be met.

        Returns:
            In a forked process: its request, and the descriptors that came with it.
        """
        gc.freeze()  # or collections in ranks would write to pages that they share
        self._poll.register(self._listener, select.POLLIN)
        while True:
            for fd, _ in self._poll.poll():
                if fd == self._listener.fileno():
                    self._accept()
                    continue
                request = self._read(fd)
                if request is not None:
                    return request

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:  # whoever it was is gone, or there are no descriptors left
            return
        self._ranks[sock.fileno()] = _Rank(sock)
        self._poll.register(sock, select.POLLIN)

    def _read(self, fd):  # type: ignore[no-untyped-def]
        rank = self._ranks[fd]
        try:
            data, passed, _, _ = socket.recv_fds(rank.socket, _READ_SIZE, _DESCRIPTORS)
        except OSError:
            data, passed = b"", []
        rank.passed += passed
        rank.buffer += data
        if not data or len(rank.buffer) > _REQUEST_LIMIT:
            self._gone(fd)
            return None
        while b"\n" in rank.buffer:
            line, _, rank.buffer = rank.buffer.partition(b"\n")
            message = json.loads(line)
            if message["op"] == "fork" and not rank.pid:
                if self._fork(rank, message):
                    return message, self._leave(rank)
            elif message["op"] == "reap" and rank.pid:
                _, status, usage = os.wait4(rank.pid, 0)
                rank.pid = 0
                rank.send({"op": "reaped", "status": status, "max_rss_kb": usage.ru_maxrss})
        return None

    def _gone(self, fd):  # type: ignore[no-untyped-def]
        """The wrapper is gone; its command goes with it."""
        rank = self._ranks.pop(fd)
        self._poll.unregister(fd)
        if rank.pid:
            os.kill(rank.pid, signal.SIGKILL)
            os.waitpid(rank.pid, os.WNOHANG)  # one that waits for a disk would hold up the other ranks
        rank.close()

    def _fork(self, rank, request):  # type: ignore[no-untyped-def]
        """Returns whether this is the forked process."""
        importer = os.getpid()
        pid = -1
        why = self._refusal(request)
        if why is None:
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    pid = os.fork()
            except OSError as error:
                why = f"no process could be forked: {error.strerror}"
        if why is not None:
            _tell(self._toolkit, {"refused": why})
            rank.send({"op": "refused"})
            return False
        if pid == 0:
            _libc.prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), *[ctypes.c_ulong(0)] * 3)
            if os.getppid() != importer:
                os.kill(os.getpid(), signal.SIGKILL)
            return True
        rank.pid = pid
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)  # here as well: who is told of it may signal its group at once
        rank.send({"op": "forked", "pid": pid})
        for fd in rank.passed:
            os.close(fd)
        rank.passed = []
        return False

    def _leave(self, rank):  # type: ignore[no-untyped-def]
        """In a forked process: keep nothing of the server's but the descriptors that came with the request."""
        passed, rank.passed = rank.passed, []
        for other in self._ranks.values():
            other.close()
        self._listener.close()
        return passed

    def _refusal(self, request):  # type: ignore[no-untyped-def]
        if request["argv"] == self._servers:
            return self._refusal_of_server(request)
        if request["argv"] != sys.orig_argv:
            return "it is another command"
        if request["traits"] != traits():
            return "it would be scheduled otherwise, or elsewhere"
        for number, _, most in request["limits"]:
            mine = resource.getrlimit(number)[1]
            if mine != most and mine != resource.RLIM_INFINITY and not 0 <= most <= mine:
                return "it has wider limits"
        return self._surroundings.refusal(request["environment"])

    def _refusal_of_server(self, request):  # type: ignore[no-untyped-def]
        """A server runs none of the script's code, nor with its settings: these have to be the server's own."""
        environment = request["environment"]
        for name, value in _SERVERS_SETTINGS.items():
            if self._surroundings.set.get(name) != environment.get(name, value):
                return f"servers have another {name}"
        found = getattr(sys.modules.get("tensorflow"), "__file__", None) or ""
        if not found or os.path.dirname(os.path.dirname(found)) in _python_path(environment):  # which servers ignore
            return "servers may have another TensorFlow"
        return self._surroundings.refusal(environment)


def _python_path(environment):  # type: ignore[no-untyped-def]
    return [folder for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder]


def traits():  # type: ignore[no-untyped-def]
    """What a process has from its parent that a fork of the importer could not take over."""
    return {
        "cwd": os.getcwd(),
        "session": os.getsid(0),
        "cores": sorted(os.sched_getaffinity(0)),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "users": [*os.getresuid(), *os.getresgid()],
    }


# --- after: be a rank ---


def _become(request, passed, changed, printed):  # type: ignore[no-untyped-def]
    """Take over all that the wrapper would have given its command."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    output, events, *others = passed
    os.dup2(output, 1, inheritable=True)
    os.dup2(output, 2, inheritable=True)
    os.close(output)
    environment = dict(request["environment"])
    os.set_inheritable(events, True)
    target = f"{events}:{os.fstat(events).st_ino}"
    environment["FLEETFIT_EVENTS"] = target  # container.contract.variables.EVENTS
    if others:
        os.set_inheritable(others[0], True)
        environment["FLEETFIT_PLACE_FD"] = str(others[0])  # container.contract.variables.PLACE_FD
    for name, value in changed.items():
        environment[name] = value
    for name in list(os.environ):
        if environment.get(name) is None:
            del os.environ[name]
    os.environ.update({name: value for name, value in environment.items() if value is not None})
    os.umask(request["umask"])
    for number, soft, most in request["limits"]:
        if resource.getrlimit(number) != (soft, most):
            resource.setrlimit(number, (soft, most))
    _reseed()
    sys.path_importer_cache.clear()
    while printed:
        printed = printed[os.write(1, printed) :]
    return target


def _reseed():  # type: ignore[no-untyped-def]
    """Give this process random numbers of its own; Python's own ``random`` sees to itself."""
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.seed()
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes.current_process().authkey = os.urandom(32)


def _run_program(argv):  # type: ignore[no-untyped-def]
    """Run a program of ours, ``python -I …/__main__.py serve``, in this process, to its end."""
    import atexit
    import runpy
    import threading

    folders = _python_path(os.environ)
    sys.path[:] = [folder for folder in sys.path if folder not in folders]
    sys.argv = argv[2:]
    sys.excepthook = sys.__excepthook__
    code = 0
    try:
        runpy.run_path(argv[2], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter would
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
