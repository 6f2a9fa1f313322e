"""Detect whether a Python process of a training job joins the other processes, and whether they exchange data.

``sitecustomize`` in this folder imports this module if the job's strategy distributes the training. The module wraps
the few functions with which a process joins a cluster or exchanges data, when their libraries are imported. The module
sends its reports to the toolkit, which is fleetfit's process that starts the ranks. The module reports each way of
joining once, and a summary at the end of the process. If the facts cannot be determined, the module reports them as
unknown, and the toolkit does not warn. :mod:`container.toolkit.evidence` evaluates the reports. The code works with
Python 3.6, and an error in this module never reaches the script.
"""

import atexit
import os
import sys

#: Programs that only report facts about the machine; TensorFlow's import and Python's platform and ctypes.util start
#: them. If a process starts any other program, that program may join the job's processes instead.
_QUERIES = frozenset(("uname", "ldconfig", "gcc", "cc", "ld", "objdump", "nvidia-smi"))

#: Libraries that connect processes in other ways, which this module does not detect.
_OTHERS = frozenset(
    ("bagua", "byteps", "dask", "distributed", "hivemind", "mxnet", "paddle", "pyspark", "ray", "smdistributed", "zmq")
)

#: Parts of the names of Horovod's operations that exchange data; the names of grouped operations contain them too.
_HOROVOD_EXCHANGES = ("allreduce", "allgather", "broadcast", "alltoall", "reducescatter")
_TENSORFLOW_EXCHANGES = ("all_reduce", "all_gather", "all_to_all")


class Evidence:
    """The facts about whether this process joins other processes and exchanges data with them.

    Args:
        tell: A function that is called with each report to the toolkit, as a dict.

    Attributes:
        joined: The ways in which the process has joined other processes.
        exchanges: For each library whose exchanges can be counted, the number of exchanges, or of exchange operations
            in graphs.
        optimizers: The number of Horovod's optimizers and gradient tapes that were created and should reduce gradients.
        reduced: Whether one of these optimizers or tapes has reduced gradients.
        stepped: Whether an optimizer of Keras 3 has changed a model. With Keras 3, Horovod's optimizers change a model
            without reducing gradients.
        unknown: The reason why the facts about this process cannot be known. Empty if the facts can be known.
    """

    def __init__(self, tell):  # type: ignore[no-untyped-def]
        self._tell = tell
        self._pid = os.getpid()
        self.joined = []
        self.exchanges = {}
        self.optimizers = 0
        self.reduced = False
        self.stepped = False
        self.unknown = ""
        self._counters = []

    def open(self):  # type: ignore[no-untyped-def]
        """Report that this process is being observed, and register :meth:`close` for its end."""
        self._tell({"pid": self._pid, "opened": True})
        atexit.register(self.close)  # registered first, so that atexit calls this function last

    def go_on(self):  # type: ignore[no-untyped-def]
        """Report that this process, which was forked from an importer, is being observed.

        An importer is a process that imports a script's packages and then forks ranks. Its own report does not apply to
        its forks.
        """
        self._pid = os.getpid()
        self._tell({"pid": self._pid, "opened": True})
        if self.unknown:
            self._tell({"pid": self._pid, "unknown": self.unknown})

    def join(self, how):  # type: ignore[no-untyped-def]
        """Record that the process has joined other processes in the way ``how``.

        Report a new way at once, because a process may exit without running the functions of ``atexit``.
        """
        if how not in self.joined:
            self.joined.append(how)
            self._tell({"pid": os.getpid(), "joined": how})

    def counts(self, library):  # type: ignore[no-untyped-def]
        """Begin to count the exchanges of a library."""
        self.exchanges.setdefault(library, 0)

    def exchange(self, library):  # type: ignore[no-untyped-def]
        """Count an exchange of a library."""
        self.exchanges[library] = self.exchanges.get(library, 0) + 1

    def count_at_end(self, count):  # type: ignore[no-untyped-def]
        """Register a function that counts exchanges at the end of the process."""
        self._counters.append(count)

    def doubt(self, why):  # type: ignore[no-untyped-def]
        """Record and report why the facts about this process cannot be known. Only the first reason counts."""
        if not self.unknown:
            self.unknown = why
            self._tell({"pid": os.getpid(), "unknown": why})

    def close(self):  # type: ignore[no-untyped-def]
        """Report all facts to the toolkit at the end of the process. A forked child reports them only if it has joined
        other processes.
        """
        try:
            if os.getpid() != self._pid and not self.joined:
                return  # a forked child, for which the toolkit does not wait
            if not self.joined:
                self._look_around()
            for count in self._counters:
                count()
            self._tell(
                {
                    "pid": os.getpid(),
                    "closed": True,
                    "exchanges": self.exchanges,
                    "optimizers": self.optimizers,
                    "reduced": self.reduced,
                    "stepped": self.stepped,
                }
            )
        except Exception:  # noqa: BLE001 - an error here must not affect the script's end
            pass

    def _look_around(self):  # type: ignore[no-untyped-def]
        """Look for signs that the process has joined others in a way that is not observed."""
        others = sorted(_OTHERS.intersection(sys.modules))
        if others:
            self.doubt("it uses " + others[0])
        if "multiprocessing.popen_spawn_posix" in sys.modules or "multiprocessing.popen_forkserver" in sys.modules:
            self.doubt("it started processes of its own")
        # A library may have called MPI_Init. With mpi4py and Horovod, the number of processes is known.
        known = "mpi4py.MPI" in sys.modules or "horovod.common.basics" in sys.modules
        if not known and _started_by_mpi() and _mpi_is_initialized():
            self.join("MPI_Init")


def _started_by_mpi():  # type: ignore[no-untyped-def]
    sizes = (os.environ.get(name, "") for name in ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"))
    return any(size.isdigit() and int(size) > 1 for size in sizes)


def _mpi_is_initialized():  # type: ignore[no-untyped-def]
    with open("/proc/self/maps") as maps:
        paths = {line.split(None, 5)[5].strip() for line in maps if "/libmpi" in line}
    for path in paths:
        if os.path.basename(path).startswith(("libmpi.so", "libmpich.so", "libmpi_abi.so")):
            import ctypes

            flag = ctypes.c_int(0)
            ctypes.CDLL(path).MPI_Initialized(ctypes.byref(flag))
            if flag.value:
                return True
    return False


# --- observed functions ---


def _wrap(owner, name, before=None, after=None):  # type: ignore[no-untyped-def]
    """Wrap a function. ``before`` is called before the function, and ``after`` is called after the function has
    returned.

    Raises:
        AttributeError: the function does not exist.
    """
    import functools

    function = getattr(owner, name)

    @functools.wraps(function)
    def wrapped(*args, **kwargs):  # type: ignore[no-untyped-def]
        if before is not None:
            _quietly(before, args, kwargs)
        result = function(*args, **kwargs)
        if after is not None:
            _quietly(after, args, kwargs)
        return result

    wrapped.autograph_info__ = None  # type: ignore[attr-defined]  # TensorFlow must not rewrite it
    setattr(owner, name, wrapped)


def _quietly(act, args, kwargs):  # type: ignore[no-untyped-def]
    try:  # noqa: SIM105 - contextlib is not imported this early
        act(*args, **kwargs)
    except Exception:  # noqa: BLE001 - an error here must not affect the script
        pass


def _horovod(module, evidence):  # type: ignore[no-untyped-def]
    def started(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        if self.size() > 1:
            evidence.join("Horovod")

    _wrap(module.HorovodBasics, "init", after=started)


def _horovod_of_tensorflow(module, evidence):  # type: ignore[no-untyped-def]
    library = module.MPI_LIB
    names = [
        name
        for name in dir(library)
        if name.startswith("horovod_") and any(word in name for word in _HOROVOD_EXCHANGES)
    ]
    if not names:
        raise AttributeError("MPI_LIB")
    for name in names:
        _wrap(library, name, before=lambda *args, **kwargs: evidence.exchange("Horovod"))
    evidence.counts("Horovod")


def _horovod_of_torch(module, evidence):  # type: ignore[no-untyped-def]
    _wrap(module, "synchronize", before=lambda *args, **kwargs: evidence.exchange("Horovod"))
    evidence.counts("Horovod")


def _horovod_optimizers(module, evidence):  # type: ignore[no-untyped-def]
    make = module._make_allreduce_grads_fn

    def made(*args, **kwargs):  # type: ignore[no-untyped-def]
        evidence.optimizers += 1
        reduce = make(*args, **kwargs)

        def reduced(*args, **kwargs):  # type: ignore[no-untyped-def]
            evidence.reduced = True
            return reduce(*args, **kwargs)

        return reduced

    module._make_allreduce_grads_fn = made


def _keras_optimizers(module, evidence):  # type: ignore[no-untyped-def]
    def stepping(*args, **kwargs):  # type: ignore[no-untyped-def]
        evidence.stepped = True

    _wrap(module.BaseOptimizer, "apply", before=stepping)


def _mpi4py(module, evidence):  # type: ignore[no-untyped-def]
    def look(*args, **kwargs):  # type: ignore[no-untyped-def]
        if module.Is_initialized() and not module.Is_finalized() and module.COMM_WORLD.Get_size() > 1:
            evidence.join("MPI")

    look()
    _wrap(module, "Init", after=look)
    _wrap(module, "Init_thread", after=look)


def _tasks(server_def):  # type: ignore[no-untyped-def]
    return sum(len(job.tasks) for job in server_def.cluster.job)


def _tensorflow_server(module, evidence):  # type: ignore[no-untyped-def]
    def started(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        if _tasks(self.server_def) > 1:
            evidence.join("a server of TensorFlow's")

    _wrap(module.Server, "__init__", after=started)


def _tensorflow_context(module, evidence):  # type: ignore[no-untyped-def]
    def connected(self, server_def, *args, **kwargs):  # type: ignore[no-untyped-def]
        if _tasks(server_def) > 1:
            evidence.join("a cluster of TensorFlow's")

    _wrap(module.Context, "set_server_def", after=connected)
    _wrap(module.Context, "enable_collective_ops", after=connected)


def _tensorflow_session(module, evidence):  # type: ignore[no-untyped-def]
    def connected(self, target=None, *args, **kwargs):  # type: ignore[no-untyped-def]
        target = target.decode() if isinstance(target, bytes) else target
        if (target or "").startswith("grpc://"):
            evidence.join("a session of TensorFlow's")

    _wrap(module.BaseSession, "__init__", after=connected)


def _multi_worker_mirrored(module, evidence):  # type: ignore[no-untyped-def]
    # Other strategies use other operations to exchange data: only this strategy's can be counted.
    _wrap(module.CollectiveAllReduceStrategy, "__init__", after=lambda *args, **kwargs: evidence.counts("TensorFlow"))


def _tensorflow_collectives(module, evidence):  # type: ignore[no-untyped-def]
    names = [name for name in dir(module) if name.startswith(_TENSORFLOW_EXCHANGES)]
    if not names:
        raise AttributeError("all_reduce")

    def exchanged(*args, **kwargs):  # type: ignore[no-untyped-def]
        if "TensorFlow" in evidence.exchanges:
            evidence.exchange("TensorFlow")

    for name in names:
        _wrap(module, name, before=exchanged)


def _torch(module, evidence):  # type: ignore[no-untyped-def]
    def started(*args, **kwargs):  # type: ignore[no-untyped-def]
        if module.get_world_size() > 1:
            evidence.join("torch.distributed")
            evidence.counts("torch")

    def look(*args, **kwargs):  # type: ignore[no-untyped-def]
        # DistributedDataParallel exchanges gradients below Python; the process groups themselves count their
        # collectives.
        try:
            if "torch" in evidence.exchanges and any(_torch_collectives(group) for group in module._world.pg_map):
                evidence.exchange("torch")
        except Exception:  # noqa: BLE001 - a backend that does not count
            evidence.exchanges.pop("torch", None)

    _wrap(module, "init_process_group", after=started)
    _wrap(module, "destroy_process_group", before=look)
    evidence.count_at_end(look)


def _torch_collectives(group):  # type: ignore[no-untyped-def]
    """Return how many collective operations a process group has executed, on all kinds of devices."""
    backends = [group._get_backend(device) for device in group._device_types]
    return sum(backend._get_sequence_number_for_group() for backend in backends)


def _jax(module, evidence):  # type: ignore[no-untyped-def]
    def started(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        if (self.num_processes or 0) > 1:
            evidence.join("jax.distributed")

    _wrap(module.State, "initialize", after=started)


#: Module -> function to call after its import.
_LOOKED_FOR = {
    "horovod.common.basics": _horovod,
    "horovod.tensorflow.mpi_ops": _horovod_of_tensorflow,
    "horovod.torch.mpi_ops": _horovod_of_torch,
    "horovod.tensorflow": _horovod_optimizers,
    "keras.src.optimizers.base_optimizer": _keras_optimizers,
    "mpi4py.MPI": _mpi4py,
    "tensorflow.python.training.server_lib": _tensorflow_server,
    "tensorflow.python.eager.context": _tensorflow_context,
    "tensorflow.python.client.session": _tensorflow_session,
    "tensorflow.python.distribute.collective_all_reduce_strategy": _multi_worker_mirrored,
    "tensorflow.python.ops.collective_ops": _tensorflow_collectives,
    "torch.distributed.distributed_c10d": _torch,
    "jax._src.distributed": _jax,
}


class _Finder:
    """The first finder in ``sys.meta_path``, which calls a function after each import of an observed module."""

    def __init__(self, evidence):  # type: ignore[no-untyped-def]
        self._evidence = evidence

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        # Not removed: a caller may only test whether the module exists, and import the module later.
        act = _LOOKED_FOR.get(name)
        if act is None:
            return None
        # Ask all finders behind this one: mpi4py has its own finder.
        finders = sys.meta_path[sys.meta_path.index(self) + 1 :]
        for finder in finders:
            find = getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                self._follow(spec, act)
                return spec
        return None

    def _follow(self, spec, act):  # type: ignore[no-untyped-def]
        evidence = self._evidence
        try:
            load = spec.loader.exec_module

            def exec_module(module):  # type: ignore[no-untyped-def]
                load(module)
                try:
                    act(module, evidence)
                except Exception:  # noqa: BLE001 - another version of the library, without the observed function
                    evidence.doubt(module.__name__ + " is a version that fleetfit does not know")

            spec.loader.exec_module = exec_module
        except Exception:  # noqa: BLE001 - an error here must not affect the import
            evidence.doubt(spec.name + " cannot be inspected")


# --- programs that a script starts ---


def _watch_programs(evidence):  # type: ignore[no-untyped-def]
    if not hasattr(sys, "addaudithook"):
        evidence.doubt("this Python does not tell which programs it starts")
        return

    def hook(event, args):  # type: ignore[no-untyped-def]
        if event in ("subprocess.Popen", "os.posix_spawn", "os.exec", "os.system") and not evidence.unknown:
            try:
                name = os.path.basename(os.fsdecode(args[0])) if event == "subprocess.Popen" else ""
            except Exception:  # noqa: BLE001 - an error here must not affect the script
                name = ""
            if name not in _QUERIES:
                evidence.doubt("it started another program")

    sys.addaudithook(hook)


def watch(tell):  # type: ignore[no-untyped-def]
    """Start to observe this process.

    Args:
        tell: A function that is called with each report to the toolkit, as a dict.

    Returns:
        The facts about the process. The object is updated while the process runs.
    """
    evidence = Evidence(tell)
    evidence.open()
    _watch_programs(evidence)
    sys.meta_path.insert(0, _Finder(evidence))
    return evidence
