"""Run a TensorFlow server in each parameter server and in each worker of a cluster.

Parameter servers store variables. Workers execute the steps that the chief schedules. A worker's script starts its
server with ``init()``.
"""

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

#: Time between two checks for the chief, and between two checks for SIGTERM, in seconds.
_POLL = 0.5
_NAP = 0.05
#: Number of failed checks in a row after which the chief is assumed to have finished.
_MISSES = 3


def serve() -> int:
    """Implement ``python -m container serve``: run the server of this process's task in TF_CONFIG until the chief has
    finished.

    Returns:
        0 on success. 2 if TF_CONFIG does not make this process a parameter server or a worker, or if the server cannot
        run.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # otherwise TensorFlow prints a message about it
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
    """Run a TensorFlow server until the chief has finished, or until SIGTERM is received.

    In SageMaker's cluster, a parameter server runs until SIGTERM is received, because workers may continue to train
    after the master has exited.

    Args:
        surroundings: The cluster, and this process's task in it.
        timeout: Maximum number of seconds to wait for the chief to start. None for no limit.

    Raises:
        DistributedError: this task's port is in use, or the chief did not start in time.
    """
    is_worker = surroundings.task == "worker"
    if not is_worker:
        os.environ["CUDA_VISIBLE_DEVICES"] = "-1"  # parameter servers use no GPU
    ended = _Terminated()
    events.emit("serving", pid=os.getpid())
    with Importing(lambda name: events.emit("importing")):
        import tensorflow as tf

    from container.distributed.tensorflow import devices

    if is_worker:
        events.emit("phase", name="imported")
        devices.configure(rank=surroundings.machine_rank, size=surroundings.machine_size)
        if '"Pipe"' in os.environ.get("SM_INPUT_DATA_CONFIG", ""):
            # The chief's graphs read this host's FIFOs in this process.
            from container.pipe_dataset import readers

            readers.register()
    config = tf.compat.v1.ConfigProto()
    # A thread is blocked while a worker's function waits for variables on other tasks. With fewer threads than workers,
    # all threads could be blocked.
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
    """A flag that is set when SIGTERM is received. If the script has its own handler of SIGTERM, the flag is
    never set.
    """

    def __init__(self) -> None:
        self.told = False
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._on_term)

    def _on_term(self, number: int, frame: FrameType | None) -> None:
        self.told = True


def _wait_for_end(chief: str | None, ended: _Terminated, timeout: float | None) -> None:
    """Wait until the chief has started and finished, or until SIGTERM is received. TensorFlow itself does not stop a
    server when the chief has finished.

    Args:
        chief: The ``address:port`` of the chief. None to wait only for SIGTERM.
        ended: The flag that is set when SIGTERM is received.
        timeout: Maximum number of seconds to wait for the chief to start. None for no limit.

    Raises:
        DistributedError: the chief did not start in time.
    """
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
    """Exit the process at once with code 0.

    TensorFlow would take seconds to stop a server, and no script has to finish in this process.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
