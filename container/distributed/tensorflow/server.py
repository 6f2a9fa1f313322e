"""Processes that serve a chief: parameter servers, and workers once their script has called ``init()``."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from types import FrameType

from container.contract import events
from container.contract.detection import ClusterKind, Surroundings, detect_server
from container.contract.errors import DistributedError
from container.distributed.core.rendezvous import listens
from container.system.host_machine import cpu_count
from container.system.importing import Importing

#: How often the chief is looked for, and SIGTERM, in seconds.
_POLL = 0.5
_NAP = 0.05
#: The chief has finished when this many looks in a row found nobody.
_MISSES = 3


def serve() -> int:
    """Run ``python -m container serve``: be the task that TF_CONFIG names, until the chief has finished.

    Returns:
        0, or 2 for an environment that names no such task.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # or TensorFlow remarks upon it
    try:
        surroundings = detect_server(os.environ)
        if surroundings.kind is not ClusterKind.PARAMETER_SERVER or surroundings.task == "chief":
            raise DistributedError("TF_CONFIG must name a 'ps' or 'worker' task of a cluster with parameter servers.")
        serve_task(surroundings)
        _leave()
    except DistributedError as error:
        print(f"container serve: {error}", file=sys.stderr)
        return 2
    return 0


def serve_task(surroundings: Surroundings, *, timeout: float | None = None) -> None:
    """Serve until the chief has finished, or SIGTERM comes.

    The servers of SageMaker's cluster serve until SIGTERM: its workers may train on when the master has ended.

    Args:
        surroundings: Which task of which cluster.
        timeout: Seconds to wait for the chief to come; None for ever.

    Raises:
        DistributedError: the port is taken, or the chief did not come.
    """
    is_worker = surroundings.task == "worker"
    if not is_worker:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # parameter servers take no GPU
    ended = _Terminated()
    events.emit("serving", pid=os.getpid())
    with Importing(lambda name: events.emit("importing")):
        import tensorflow as tf

    from container.distributed.tensorflow import devices

    if is_worker:
        events.emit("phase", name="imported")
        devices.configure(rank=surroundings.machine_rank, size=surroundings.machine_size)
        if '"Pipe"' in os.environ.get("SM_INPUT_DATA_CONFIG", ""):
            # The chief's graphs read this host's FIFOs in here.
            from container.pipe_dataset import readers

            readers.register()
    config = tf.compat.v1.ConfigProto()
    # Each worker's functions wait for one another's variables: fewer threads than workers could all be waiting.
    config.inter_op_parallelism_threads = max(4, surroundings.size + 1)
    config.intra_op_parallelism_threads = max(1, cpu_count() // surroundings.machine_size)
    config.gpu_options.allow_growth = True
    cluster = tf.train.ClusterSpec({task: list(found) for task, found in surroundings.addresses.items()})
    try:
        server = tf.distribute.Server(
            cluster, job_name=surroundings.task, task_index=surroundings.rank, protocol="grpc", config=config
        )
    except (tf.errors.OpError, RuntimeError) as error:
        address = surroundings.addresses[surroundings.task][surroundings.rank]
        raise DistributedError(f"{surroundings.task} {surroundings.rank} cannot serve at {address}: {error}") from error
    if is_worker:
        events.emit("phase", name="rendezvous")
    chief = surroundings.addresses.get("chief")
    _wait_for_end(chief[0] if chief else None, ended, timeout)
    del server


class _Terminated:
    """Whether SIGTERM has come; a handler of the script's own is left alone."""

    def __init__(self) -> None:
        self.told = False
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_term)

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        self.told = True


def _wait_for_end(chief: str | None, ended: _Terminated, timeout: float | None) -> None:
    """Return when the chief was there and is gone: nothing in TensorFlow ends a server then."""
    began = time.monotonic()
    seen = False
    misses = 0
    while not ended.told:
        if chief is None:
            pass
        elif listens(chief):
            seen, misses = True, 0
        else:
            misses += 1
            if seen and misses >= _MISSES:
                return
            if not seen and timeout is not None and time.monotonic() - began > timeout:
                raise DistributedError(f"the chief ({chief}) did not start within {timeout:g} s.")
        until = time.monotonic() + _POLL
        while not ended.told and time.monotonic() < until:
            time.sleep(_NAP)


def _leave() -> None:
    """End at once, with 0: TensorFlow takes seconds to tear a server down, and there is no script to end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
