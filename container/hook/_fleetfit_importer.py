"""A machine's importer: a Python that has imported what a script will import, and is forked for each of its ranks.

A toolkit starts the rank's own command, ``python train.py …``, with :data:`VARIABLE` in its environment. While the
interpreter starts, ``sitecustomize`` beside this file calls :func:`serve`, which imports what the toolkit has read from
the script's source. Then it serves *hosts*: for each toolkit that asks (:mod:`container.toolkit.importer.client`) it
forks a process, the host's own importer, which has the host's folder and command, ends with its toolkit, and takes
everything below it along. That one forks a process for every rank wrapper that asks. The importer itself never leaves
:func:`serve`; a rank returns from it, and the interpreter goes on to run the script as it would have: the same command
line, ``__main__``, traceback, exit functions and exit code.

It lives as long as those for whom it was started, the supervisors or agents above the toolkits, and where they want
that, a while longer: the next job finds it. No host is forked from one that has imported what was changed since.

What could tell the difference is looked for, and then there is no importer, or this one rank is not forked from it:
see :meth:`Surroundings.refusal` and :func:`_unfit`.

It runs under the toolkit's own interpreter only. Nothing of ours can be imported here, but what lies beside it.
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

import _fleetfit_command  # type: ignore[import-not-found]

#: Where the toolkit says that this process is to be the importer: ``LISTENER:REQUEST``, two descriptors. The request
#: is JSON, and that of a host: ``argv``, ``cwd``, ``environment``, ``traits``; ``settings`` ([[name, value, whether
#: only if it is not set], …]), ``statements`` (imports), ``names`` (modules of the project's), ``code`` (its folder),
#: and ``servers``, the command of parameter servers, empty where there are none; ``keep``, how many seconds the
#: importer stays when nobody needs it, ``place``, the file of its socket, ``keep_with``, the process with which it ends
#: before that (0 for none), and ``holder``, whom it serves until then, a pid.
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
        "SAGEMAKER_BASE_DIR",
        "SHLVL",
        "SSH_CLIENT",
        "SSH_CONNECTION",
        "TF_CONFIG",
        "TMPDIR",
        "TRAINING_JOB_ARN",
        "TRAINING_JOB_NAME",
        "WORLD_SIZE",
        "XDG_SESSION_ID",
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
_PR_SET_CHILD_SUBREAPER = 36
#: What modules may print while they are imported, in bytes; each rank repeats it.
_PRINTED_LIMIT = 1 << 18
_NO_COLLECTION = 1 << 30
_REQUEST_LIMIT = 64 << 20
_READ_SIZE = 1 << 16
_DESCRIPTORS = 3
#: How often it is looked whether the machine has memory to spare, and for orphans that have ended, in seconds.
_LOOK_S = 1.0
#: What of the machine's memory must be left for others, or a kept importer goes.
_SPARE_MEMORY = 0.1
#: How long what is killed may take to go, in seconds.
_END_S = 2.0
#: What modules are known to read while they are imported, beside themselves: a changed one would not be seen.
_READ_AT_IMPORT = ("~/.keras/keras.json", "~/.config/matplotlib/matplotlibrc")

#: Modules that look through all variables while they are imported, but only for those whose names begin like this.
_LOOKED_FOR = {"tqdm.utils": b"TQDM_"}

_libc = ctypes.CDLL(None)

#: The environment that this interpreter was started with, as far as a rank is to have it.
_AT_START = {name: value for name, value in os.environ.items() if name != VARIABLE}


class Unfit(Exception):
    """No rank can be forked from this process; the message says why."""


def serve():  # type: ignore[no-untyped-def]
    """Import, and fork hosts and ranks until nobody needs this process any more.

    Returns:
        The ``fd:inode`` for events, in a process that is to go on as a rank. The importer never returns.
    """
    forked = False
    importer = None
    try:
        fd, _, request_fd = os.environ.pop(VARIABLE).partition(":")
        with os.fdopen(int(request_fd), "rb") as file:
            request = json.loads(file.read())
        importer = _Importer(socket.socket(fileno=int(fd)), request)
        importer.load()
        host = importer.run()  # returns in a fork, the importer of a host
        forked = True
        importer = None
        rank, passed, server = host.run()  # returns in a rank
        return _become(rank, passed, host, server=server)
    except BaseException as error:  # noqa: BLE001 - this process must not go on to run the script
        if importer is not None:
            importer.remove_place()
            importer.tell({"unfit": str(error) if isinstance(error, Unfit) else f"{type(error).__name__}: {error}"})
        elif forked:
            os.write(2, f"the process that was forked for this rank failed: {error!r}\n".encode())
    os._exit(1)


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
        prefix = _LOOKED_FOR.get(_reader())
        if prefix is not None:
            return iter([name for name in super().__iter__() if name.startswith(prefix)])
        self.whole = True
        return super().__iter__()

    def get(self, name, default=None):  # type: ignore[no-untyped-def]
        self.seen.add(name)
        return super().get(name, default)


def _reader():  # type: ignore[no-untyped-def]
    """Return the name of the module that looks at the environment, beyond those that ``os.environ`` is made of."""
    depth = 2
    while sys._getframe(depth).f_globals.get("__name__") in ("os", "collections.abc", "_collections_abc"):
        depth += 1
    return sys._getframe(depth).f_globals.get("__name__")


class _NotTheProjects:
    """Refuses modules that the script's folder has a file for: its code is the rank's alone to run.

    It tells the toolkits now and then that modules are imported, which under load may take long in silence.

    Args:
        names: The modules that lie in the folder.
        tell: Tells it.

    Attributes:
        asked_for: The first of them that was asked for.
        tops: All modules and packages that were asked for by a name of one word.
    """

    def __init__(self, names, tell):  # type: ignore[no-untyped-def]
        self._names = frozenset(names)
        self._tell = tell
        self._next = 0.0
        self._seen = set()
        self.asked_for = ""
        self.tops = set()

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        if name not in self._seen:  # what is tried again and again is no progress
            self._seen.add(name)
            if time.monotonic() >= self._next:
                self._next = time.monotonic() + 1.0
                self._tell({"importing": name})
        if path is None:
            self.tops.add(name)
            if name in self._names:
                self.asked_for = name  # whoever asks may take any exception for the module's absence
                raise ImportError(f"the script's folder has a module {name}")


def _import(plan, tell, own):  # type: ignore[no-untyped-def]
    """Do what the plan says, with what is printed kept in standard error, a file in memory.

    Returns:
        What the imports had to do with the environment, and the modules that were asked for by a name of one word.

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
    finder = _NotTheProjects(plan["names"], tell)
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
    _unfit(opened, own())
    names = {*after_settings, *os.environ}
    changed = {name: os.environ.get(name) for name in names if after_settings.get(name) != os.environ.get(name)}
    seen = {os.fsdecode(name) for name in noted.seen}
    return Surroundings(_AT_START, after_settings, seen, noted.whole, changed, plan["code"]), finder.tops


def _unfit(opened, own):  # type: ignore[no-untyped-def]
    """Look at what a fork would not copy, or would share.

    Args:
        opened: The descriptors that were open before the imports.
        own: Those that we have opened meanwhile.

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
        if opened.get(fd) != path and fd not in own and path not in ("/dev/null", "/dev/urandom", "/dev/random"):
            raise Unfit(f"a module opens {path} when it is imported")
    if os.fstat(2).st_size > _PRINTED_LIMIT:
        raise Unfit("the imports print too much")


def _descriptors():  # type: ignore[no-untyped-def]
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one by which they were listed
            found[int(name)] = os.readlink("/proc/self/fd/" + name)
    return found


# --- while: serve hosts ---


class Surroundings:
    """What the imports had to do with the environment.

    Args:
        environment: As it was before.
        settings: As it was with the script's settings.
        seen: The names of variables that were looked at.
        whole: Whether all of it was looked at.
        changed: The variables that modules have set, None for those that they have removed.
        code: The folder of the code, which stands in ``PYTHONPATH``.
    """

    def __init__(self, environment, settings, seen, whole, changed, code=""):  # type: ignore[no-untyped-def]
        self._environment = {name: _compared(name, value) for name, value in environment.items()}
        self.set = {name: settings.get(name) for name in _SERVERS_SETTINGS}
        self._seen = seen
        self._whole = whole
        self.changed = changed
        self.code = code

    def refusal(self, theirs, code=""):  # type: ignore[no-untyped-def]
        """Return why a rank with another environment is not to be forked; None if it can be. Pure.

        Args:
            theirs: The rank's environment.
            code: The folder of its code.
        """
        for name in sorted({*self._environment, *theirs}):
            mine, other = self._environment.get(name), _compared(name, theirs.get(name))
            if mine == other or (name in _LISTS and _entries(mine) == _entries(other)):
                continue
            if name == "PYTHONPATH" and [self.code if entry == code else entry for entry in _entries(other)] == (
                _entries(mine)
            ):  # nothing was imported from either
                continue
            harmless = name in _HARMLESS or name.startswith(_HARMLESS_PREFIXES)
            if not harmless or self._whole or name in self._seen:
                return f"{name} differs"
        return None


def _compared(name, value):  # type: ignore[no-untyped-def]
    """What is remembered of a variable: not the words of one job, as another's may be forked from here."""
    return value if value is None or not name.startswith(_HARMLESS_PREFIXES) else hash(value)


def _entries(value):  # type: ignore[no-untyped-def]
    """What is looked through, in its order: mpirun puts the same folder in front several times."""
    return list(dict.fromkeys((value or "").split(os.pathsep)))


def _read_files(code):  # type: ignore[no-untyped-def]
    """What was read by the imports, with its size and time, and the folders in which another module could appear.

    Args:
        code: The folder of the code, of which nothing was read.
    """
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    files.update(os.path.expanduser(path) for path in _READ_AT_IMPORT)
    files.update(path for path in sys.path if path != code)
    return {file: _identity(file) for file in files if isinstance(file, str)}


def _identity(path):  # type: ignore[no-untyped-def]
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


class _Caller:
    """A toolkit's connection."""

    def __init__(self, sock):  # type: ignore[no-untyped-def]
        self.socket = sock

    def send(self, message) -> None:  # type: ignore[no-untyped-def]
        with contextlib.suppress(OSError):  # it is gone, which is noticed when it is read
            self.socket.sendall(json.dumps(message).encode() + b"\n")


class _Importer:
    """Imports, and forks the importers of hosts.

    Args:
        listener: Where toolkits connect.
        request: What the first of them has asked for.
    """

    def __init__(self, listener, request):  # type: ignore[no-untyped-def]
        self._listener = listener
        self._listener.setblocking(False)
        self._plan = request
        self._place = request["place"]
        self._is_place = _identity(self._place)
        self._callers = {}  # by descriptor
        self._hosts = {}  # by the descriptor of the process -> its pid
        self._holders = {}  # pid -> descriptor of the process
        self._keep = 0.0
        self._with = 0, -1  # a process, and its descriptor
        self._until = 0.0
        self._retired = False
        self._poll = select.poll()
        self._modules: frozenset[str] = frozenset()
        self._files = {}
        self._packages = sorted({text.split()[1] for text in request["statements"]})
        self._seconds = 0.0

    def tell(self, message) -> None:  # type: ignore[no-untyped-def]
        """Tell all toolkits that wait."""
        self._accept()
        for caller in self._callers.values():
            caller.send(message)

    def load(self) -> None:
        """Import.

        Raises:
            Unfit: what was imported is not to be forked.
        """
        began = time.monotonic()
        self._surroundings, tops = _import(self._plan, self.tell, lambda: {self._listener.fileno(), *self._callers})
        self._modules = frozenset(tops | {name.partition(".")[0] for name in sys.modules})
        self._files = _read_files(self._plan["code"])
        try:
            self._configuration = _fleetfit_command.Configuration()
        except _fleetfit_command.NoPlace:
            self._configuration = None
        self._seconds = round(time.monotonic() - began, 3)
        os.chdir("/")  # the folder is its job's, which may be removed
        del self._plan["environment"]
        _AT_START.clear()
        # Until here it ended with the toolkit that has started it. Its forks' orphans are this process's to end.
        _prctl(_PR_SET_PDEATHSIG, 0)
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)

    def run(self):  # type: ignore[no-untyped-def]
        """Serve toolkits.

        Returns:
            In a fork: the importer of a host. Here, never.
        """
        gc.freeze()  # or collections in ranks would write to pages that they share
        self._until = time.monotonic() + _END_S  # the first one has connected, or is gone
        self._poll.register(self._listener, select.POLLIN)
        self._accept()
        while True:
            wait = self._wait()
            if wait == 0.0:
                self.remove_place()
                os._exit(0)
            for fd, _ in self._poll.poll(None if wait is None else wait * 1000):
                if fd == self._listener.fileno():
                    self._accept()
                elif fd in self._hosts:
                    self._host_ended(fd)
                elif fd in self._callers:
                    host = self._read(fd)
                    if host is not None:
                        return host
                else:
                    self._holder_ended(fd)

    def _wait(self):  # type: ignore[no-untyped-def]
        """How long to wait, in seconds: None for ever, 0 if this process has come to its end."""
        if self._hosts or (self._holders and not self._retired):
            return None
        left = self._until - time.monotonic()
        if self._retired or left <= 0.0 or _memory_is_short() or _identity(self._place) != self._is_place:
            return 0.0
        return min(left, _LOOK_S)

    def remove_place(self) -> None:
        """Nobody can connect any more."""
        if _identity(self._place) == self._is_place:
            for path in (self._place, self._place + ".json"):
                with contextlib.suppress(OSError):
                    os.unlink(path)
            with contextlib.suppress(OSError):  # others' are there
                os.rmdir(os.path.dirname(self._place))

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # there is none, it is gone, or there are no descriptors left
                return
            self._callers[sock.fileno()] = _Caller(sock)
            self._poll.register(sock, select.POLLIN)

    def _read(self, fd):  # type: ignore[no-untyped-def]
        """Take a toolkit's request, which is one message with its descriptors."""
        caller = self._callers[fd]
        try:
            data, passed, _, _ = socket.recv_fds(caller.socket, _READ_SIZE, _DESCRIPTORS)
        except OSError:
            data, passed = b"", []
        host = None
        try:
            if len(passed) == _DESCRIPTORS and data:
                host = self._serve(caller, *passed)
        finally:
            if host is None:
                self._poll.unregister(fd)
                del self._callers[fd]
                caller.socket.close()
                for one in passed:
                    os.close(one)
        return host

    def _serve(self, caller, request_fd, listener, holder):  # type: ignore[no-untyped-def]
        """Fork the importer of a host; returned there."""
        with os.fdopen(os.dup(request_fd), "rb") as file:
            request = json.loads(file.read())
        why = self._refusal(request)
        pid = -1
        if why is None:
            try:
                pid = _fork()
            except OSError as error:
                why = f"no process could be forked: {error.strerror}"
        if why is not None:
            self._retired = True  # another one takes its place
            caller.send({"op": "refused", "why": why})
            return None
        if pid == 0:
            self._listener.close()
            for other in self._callers.values():
                if other is not caller:
                    other.socket.close()
            for fd in (*self._hosts, *self._holders.values(), request_fd, holder, self._with[1]):
                if fd >= 0:
                    os.close(fd)
            self._callers = {caller.socket.fileno(): caller}
            return _Host(caller, socket.socket(fileno=listener), request, self._surroundings, self._configuration)
        process = os.pidfd_open(pid)
        self._hosts[process] = pid
        self._poll.register(process, select.POLLIN)
        if request["holder"] not in self._holders:
            held = self._holders[request["holder"]] = os.dup(holder)
            self._poll.register(held, select.POLLIN)
        self._keep = request["keep"]
        self._keep_with(request["keep_with"])
        if self._keep:
            home = {name: os.environ[name] for name in ("FLEETFIT_HOME",) if name in os.environ}
            _fleetfit_command.show(["fleetfit-importer", *self._packages], {**home, VARIABLE: self._place})
        self._note(None)
        caller.send({"imported": self._packages, "seconds": self._seconds})
        caller.send({"op": "hosting", "pid": pid})
        self._seconds = 0.0  # others have not waited for it
        return None

    def _refusal(self, request):  # type: ignore[no-untyped-def]
        if [request["statements"], request["settings"]] != [self._plan["statements"], self._plan["settings"]]:
            return "it imports something else"
        if clash := sorted(self._modules.intersection(request["names"])):
            return f"its folder has a module {clash[0]}"
        if self._configuration is None and (request["argv"], request["cwd"]) != (self._plan["argv"], self._plan["cwd"]):
            return "it is another command"
        if request["argv"][0] != sys.orig_argv[0]:
            return "it is another Python"
        if {**traits(), "cwd": ""} != {**request["traits"], "cwd": ""}:
            return "it would be scheduled otherwise, or elsewhere"
        for file, identity in self._files.items():
            if _identity(file) != identity:
                return f"{file} was changed"
        return self._surroundings.refusal(request["environment"], request["code"])

    def _host_ended(self, fd) -> None:  # type: ignore[no-untyped-def]
        pid = self._hosts.pop(fd)
        self._poll.unregister(fd)
        os.close(fd)
        _, status = os.waitpid(pid, 0)
        if status != 0:  # it could not see to what it had started, or its toolkit was killed
            _end_children(self._hosts.values())
            self._keep = 0.0
        self._until = time.monotonic() + self._keep
        if not self._hosts:
            self._note(time.time() + self._keep)

    def _keep_with(self, pid) -> None:  # type: ignore[no-untyped-def]
        """Be kept no longer than a process runs, if that is wanted."""
        if self._with[0] == pid:
            return
        if self._with[1] >= 0:
            self._poll.unregister(self._with[1])
            os.close(self._with[1])
        self._with = pid, -1
        if pid:
            try:
                fd = os.pidfd_open(pid)
            except OSError:  # it is gone
                self._keep = 0.0
            else:
                self._with = pid, fd
                self._poll.register(fd, select.POLLIN)

    def _holder_ended(self, fd) -> None:  # type: ignore[no-untyped-def]
        if fd == self._with[1]:
            self._with = 0, -1
            self._keep = self._until = 0.0
        self._poll.unregister(fd)
        os.close(fd)
        self._holders = {pid: held for pid, held in self._holders.items() if held != fd}

    def _note(self, until) -> None:  # type: ignore[no-untyped-def]
        """Write down who this is, for those who look for what is kept."""
        facts = {"pid": os.getpid(), "packages": self._packages, "until": until, "keep": self._keep}
        with contextlib.suppress(OSError):
            if _identity(self._place) == self._is_place:
                with open(f"{self._place}.new", "w") as file:
                    json.dump(facts, file)
                os.replace(f"{self._place}.new", f"{self._place}.json")


def _fork():  # type: ignore[no-untyped-def]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return os.fork()


def _prctl(option, value) -> None:  # type: ignore[no-untyped-def]
    _libc.prctl(option, ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3)


def _memory_is_short() -> bool:
    """Whether what is left of the machine's memory is needed by others more than an importer that is kept."""
    sizes = {}
    with contextlib.suppress(OSError, ValueError), open("/proc/meminfo") as file:
        for line in file:
            name, _, rest = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                sizes[name] = int(rest.split()[0])
    return sizes.get("MemAvailable", 1) < _SPARE_MEMORY * sizes.get("MemTotal", 0)


def _children():  # type: ignore[no-untyped-def]
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return [int(word) for word in file.read().split()]


def _end_children(spared=()) -> None:  # type: ignore[no-untyped-def]
    """Kill all children but some, and what becomes a child by that."""
    until = time.monotonic() + _END_S
    while left := [pid for pid in _children() if pid not in spared]:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() > until:
            return
        time.sleep(0.0005)


# --- while: serve ranks ---


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


class _Host:
    """Takes requests of a host's wrappers, for as long as its toolkit wants.

    Args:
        toolkit: The toolkit's connection.
        listener: Where wrappers connect.
        request: The toolkit's.
        surroundings: What :func:`_import` returned.
        configuration: The interpreter's; None if it is not known where it lies.
    """

    def __init__(self, toolkit, listener, request, surroundings, configuration):  # type: ignore[no-untyped-def]
        self._toolkit = toolkit
        self._listener = listener
        self._argv = request["argv"]
        self._servers = request["servers"]
        self.code = request["code"]
        self.surroundings = surroundings
        self.configuration = configuration
        self._ranks = {}
        self._poll = select.poll()
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        os.setsid()
        os.chdir(request["cwd"])
        os.environ["PWD"] = request["cwd"]
        _fleetfit_command.show(self._argv, {**request["environment"], VARIABLE: "host"})

    def run(self):  # type: ignore[no-untyped-def]
        """Fork a rank for each request that can be met.

        Returns:
            In a forked process: its request, the descriptors that came with it, and whether it is a server.
        """
        self._poll.register(self._listener, select.POLLIN)
        self._poll.register(self._toolkit.socket, select.POLLIN)
        while True:
            for fd, _ in self._poll.poll(_LOOK_S * 1000 if self._reap() else None):
                if fd == self._listener.fileno():
                    self._accept()
                elif fd == self._toolkit.socket.fileno():
                    self._end()
                else:
                    request = self._read(fd)
                    if request is not None:
                        return request

    def _reap(self) -> bool:
        """Collect orphans of ranks that have ended; returns whether there are others."""
        ranks = {rank.pid for rank in self._ranks.values()}
        there = False
        for pid in _children():
            if pid not in ranks:
                with contextlib.suppress(ChildProcessError):
                    there = os.waitpid(pid, os.WNOHANG)[0] == 0 or there
        return there

    def _end(self) -> None:
        """The toolkit wants no more of this, or is gone: with this process goes all that it has started."""
        try:
            orderly = b'"end"' in self._toolkit.socket.recv(_READ_SIZE)
        except OSError:
            orderly = False
        _end_children()
        os._exit(0 if orderly else 1)

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
                    return message, self._leave(rank), message["argv"] == self._servers
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
                pid = _fork()
            except OSError as error:
                why = f"no process could be forked: {error.strerror}"
        if why is not None:
            self._toolkit.send({"refused": why})
            rank.send({"op": "refused"})
            return False
        if pid == 0:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
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
        self._toolkit.socket.close()
        return passed

    def _refusal(self, request):  # type: ignore[no-untyped-def]
        if request["argv"] == self._servers:
            return self._refusal_of_server(request)
        if request["argv"] != self._argv:
            return "it is another command"
        if request["traits"] != traits():
            return "it would be scheduled otherwise, or elsewhere"
        for number, _, most in request["limits"]:
            mine = resource.getrlimit(number)[1]
            if mine != most and mine != resource.RLIM_INFINITY and not 0 <= most <= mine:
                return "it has wider limits"
        return self.surroundings.refusal(request["environment"], self.code)

    def _refusal_of_server(self, request):  # type: ignore[no-untyped-def]
        """A server runs none of the script's code, nor with its settings: these have to be the server's own."""
        environment = request["environment"]
        for name, value in _SERVERS_SETTINGS.items():
            if self.surroundings.set.get(name) != environment.get(name, value):
                return f"servers have another {name}"
        found = getattr(sys.modules.get("tensorflow"), "__file__", None) or ""
        if not found or os.path.dirname(os.path.dirname(found)) in _python_path(environment):  # which servers ignore
            return "servers may have another TensorFlow"
        return self.surroundings.refusal(environment, self.code)


def _python_path(environment):  # type: ignore[no-untyped-def]
    return [folder for folder in environment.get("PYTHONPATH", "").split(os.pathsep) if folder]


def traits():  # type: ignore[no-untyped-def]
    """What a process has from its parent that a fork of the importer could not take over."""
    with open("/proc/self/cgroup") as file:
        groups = file.read()
    return {
        "cwd": os.getcwd(),
        "cores": sorted(os.sched_getaffinity(0)),
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "users": [*os.getresuid(), *os.getresgid()],
        "groups": groups,
        "namespaces": [os.readlink(f"/proc/self/ns/{kind}") for kind in ("ipc", "mnt", "net", "pid", "user", "uts")],
    }


# --- after: be a rank ---


def _become(request, passed, host, *, server):  # type: ignore[no-untyped-def]
    """Take over all that the wrapper would have given its command; a server is run to its end."""
    with contextlib.suppress(OSError):
        os.setpgid(0, 0)
    printed = os.pread(2, _PRINTED_LIMIT, 0)
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
    if not server and host.configuration is not None:
        host.configuration.take(request["argv"])
    _fleetfit_command.show(request["argv"], environment)
    for name, value in host.surroundings.changed.items():
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
    sys.path[:] = [host.code if folder == host.surroundings.code else folder for folder in sys.path]
    sys.path_importer_cache.clear()
    while printed:
        printed = printed[os.write(1, printed) :]
    if server:
        _run_program(request["argv"])
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
