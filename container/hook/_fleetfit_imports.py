"""What the machine's importer imports, and what a fork of it would then share or lack.

See ``_fleetfit_importer.py``. Nothing of ours can be imported here, but what lies beside it.
"""

import contextlib
import gc
import importlib.machinery
import os
import signal
import sys
import time
import warnings

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
        "CURRENT_HOST",
        "OLDPWD",
        "PSM_DEVICES",
        "PWD",
        "PYTEST_CURRENT_TEST",
        "RANK",
        "ROLE_NAME",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "SAGEMAKER_BASE_DIR",
        "SAGEMAKER_JOB_NAME",
        "SAGEMAKER_REGION",
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
#: Variables that compiled libraries read when they are loaded, which is not seen.
_READ_BY_LIBRARIES = (
    *("ABSL_", "BLIS_", "CUDA_", "CUDNN_", "GOMP_", "GOTO_", "GRPC_", "JAX_", "KERAS_", "KMP_", "LD_", "MALLOC_"),
    *("MKL_", "NPY_", "NVIDIA_", "OMP_", "OPENBLAS_", "PYTORCH_", "TF_", "TORCH_", "XLA_"),
)
_HARMLESS_PREFIXES = (
    *("FLEETFIT_", "HOROVOD_", "NCCL_", "OMPI_", "ORTE_", "PMIX_", "PMI_", "PRTE_", "SLURM", "SM_"),
    "TORCHELASTIC_",
)

#: What ``python -m container serve`` sets before it imports TensorFlow, where the environment does not.
SERVERS_SETTINGS = {"TF_CPP_MIN_LOG_LEVEL": "2", "TF_ENABLE_ONEDNN_OPTS": "0"}

#: What modules may print while they are imported, in bytes; each rank repeats it.
PRINTED_LIMIT = 1 << 18
_NO_COLLECTION = 1 << 30
#: What modules are known to read while they are imported, beside themselves: a changed one would not be seen.
_READ_AT_IMPORT = ("~/.keras/keras.json", "~/.config/matplotlib/matplotlibrc")

#: Modules that look through all variables while they are imported, but only for those whose names begin like this.
_LOOKED_FOR = {"tqdm.utils": b"TQDM_"}


class Unfit(Exception):
    """No rank can be forked from this process; the message says why."""


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


def do(plan, environment, tell, own):  # type: ignore[no-untyped-def]
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
        for module in plan["on_use"]:
            with contextlib.suppress(Exception):  # each rank finds out by itself, when it uses it
                __import__(module)
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
    surroundings = Surroundings(environment, after_settings, seen, noted.whole, changed, plan["code"])
    inside = os.path.join(plan["code"], "")
    for name, module in list(sys.modules.items()):
        of = getattr(module, "__dict__", {})  # some have an attribute by any name
        if any(str(place).startswith(inside) for place in (of.get("__file__"), *(of.get("__path__") or ()))):
            raise Unfit(f"the script's folder has a module {name}")
    surroundings.note(plan)
    return surroundings, finder.tops


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
            # Without the number of a socket or a pipe: hosts that say the same are told of once.
            kind, _, number = path.partition(":[")
            opens = f"a {kind}" if number[:-1].isdecimal() else path
            raise Unfit(f"a module opens {opens} when it is imported")
    if os.fstat(2).st_size > PRINTED_LIMIT:
        raise Unfit("the imports print too much")


def _descriptors():  # type: ignore[no-untyped-def]
    found = {}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one by which they were listed
            found[int(name)] = os.readlink("/proc/self/fd/" + name)
    return found


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
        self.set = {name: settings.get(name) for name in SERVERS_SETTINGS}
        self._seen = seen
        self._whole = whole
        self.changed = changed
        self.code = code
        self._settings = []
        self._packages = {}

    def note(self, plan) -> None:  # type: ignore[no-untyped-def]
        """Note what a script is to find as it was imported: the packages, and what it sets itself before them."""
        self._settings = plan["settings"]
        for top in {statement.split()[1].partition(".")[0] for statement in plan["statements"]}:
            file = getattr(sys.modules.get(top), "__file__", None)
            if file is not None:
                self._packages[top] = file, identity(file)

    def hide(self) -> None:
        """Have the script's own import of each package find what is imported, if it would find the same by itself.

        In a rank, when nothing is left to do but to run the script.
        """
        expected = dict(os.environ)
        for name, value, default in self._settings:
            if not default or name not in expected:
                expected[name] = value
        again = {name: self.changed[name] for name, _, _ in self._settings if name in self.changed}
        _Imported(self._packages, expected, self._matters, again).hide()

    def _matters(self, name) -> bool:  # type: ignore[no-untyped-def]
        return self._whole or name in self._seen or name.startswith(_READ_BY_LIBRARIES)

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


class _Imported:
    """Gives a script the packages that are imported already, when it imports them itself.

    What a script does before that is known from its source, if it is what it seems. Where it has set what a package has
    read, or would find another package, it must not get this one: it is told.

    Args:
        packages: The packages, each with its file, and what identified that when it was imported.
        expected: The environment as it has to be.
        matters: Whether a variable may have been read.
        again: What packages have made of variables that the script sets before it imports them.
    """

    def __init__(self, packages, expected, matters, again):  # type: ignore[no-untyped-def]
        self._again = again
        self._packages = packages
        self._expected = expected
        self._matters = matters
        self._hidden = {}

    def hide(self) -> None:
        for name in list(sys.modules):
            top = name.partition(".")[0]
            if top in self._packages:
                self._hidden.setdefault(top, {})[name] = sys.modules.pop(name)
        if self._hidden:
            sys.meta_path.insert(0, self)

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        hidden = self._hidden.get(name) if path is None else None
        if hidden is None:
            return None
        folders = getattr(hidden[name], "__path__", None)
        spec = importlib.machinery.ModuleSpec(
            name,
            self,  # type: ignore[arg-type]
            origin=self._packages[name][0],
            is_package=folders is not None,
        )
        if folders is not None:
            spec.submodule_search_locations = list(folders)
        return spec

    def create_module(self, spec):  # type: ignore[no-untyped-def]
        return None

    def exec_module(self, module) -> None:  # type: ignore[no-untyped-def]
        name = module.__name__
        why = self._refusal(name)
        if why is not None:
            raise RuntimeError(
                f"{why}, but fleetfit had already imported {name} for this process. Set variables at the top of the "
                'script, as os.environ["NAME"] = "value", or in environment= of the estimator; or set '
                'environment={"FLEETFIT_FORK": "0"}, so that each process imports its modules itself.'
            )
        sys.modules.update(self._hidden.pop(name))
        if not self._hidden:
            sys.meta_path.remove(self)
            for variable, value in self._again.items():
                if value is None:
                    os.environ.pop(variable, None)
                else:
                    os.environ[variable] = value

    def _refusal(self, name):  # type: ignore[no-untyped-def]
        for variable in sorted({*self._expected, *os.environ}):
            if self._expected.get(variable) != os.environ.get(variable) and self._matters(variable):
                return f"the script has set {variable} before it imports {name}"
        file, was = self._packages[name]
        found = importlib.machinery.PathFinder.find_spec(name)
        if found is not None and found.origin != file:
            return f"the script would import {name} from {found.origin}, which is not {file}"
        if identity(file) != was:
            return f"{file} was changed before the script imports {name}"
        return None


def _compared(name, value):  # type: ignore[no-untyped-def]
    """What is remembered of a variable: not the words of one job, as another's may be forked from here."""
    return value if value is None or not name.startswith(_HARMLESS_PREFIXES) else hash(value)


def _entries(value):  # type: ignore[no-untyped-def]
    """What is looked through, in its order: mpirun puts the same folder in front several times."""
    return list(dict.fromkeys((value or "").split(os.pathsep)))


def read_files(code):  # type: ignore[no-untyped-def]
    """What was read by the imports, with its size and time, and the folders in which another module could appear.

    Args:
        code: The folder of the code, of which nothing was read.
    """
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    files.update(os.path.expanduser(path) for path in _READ_AT_IMPORT)
    files.update(path for path in sys.path if path != code)
    return {file: identity(file) for file in files if isinstance(file, str)}


def identity(path):  # type: ignore[no-untyped-def]
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
