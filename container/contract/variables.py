"""Define the names of the environment variables that a backend, the toolkit, the ranks and the training script
exchange.

The ``SM_*`` variables of the training script are defined in :mod:`container.contract.environment`. All variables in
this module are optional. On SageMaker, none of these variables is set.
"""

from __future__ import annotations

# --- a backend sets these for `python -m container train` ---

#: Root of the host's tree, SageMaker's own variable. Default ``/opt/ml``.
BASE_DIR = "SAGEMAKER_BASE_DIR"
#: The job's name, SageMaker's own variable.
JOB_NAME = "TRAINING_JOB_NAME"
#: Number of the job's attempt, from 0.
ATTEMPT = "FLEETFIT_ATTEMPT"
#: Descriptor of the listening control socket. algo-1 inherits this descriptor if hosts share a machine, because ports
#: are not fixed then.
CONTROL_FD = "FLEETFIT_CONTROL_FD"
#: ``address:port`` of algo-1's control socket. Default: algo-1's host name and :data:`CONTROL_PORT`.
CONTROL_ADDRESS = "FLEETFIT_CONTROL_ADDRESS"
#: The fixed port of the control connection between containers.
CONTROL_PORT = 7711
#: The hosts' addresses as JSON, ``{"algo-1": "10.0.0.5"}``, if the hosts' names do not resolve. Such hosts may also run
#: other jobs: ports are therefore reserved, not fixed.
ADDRESSES = "FLEETFIT_ADDRESSES"
#: A secret with which hosts of the same job authenticate. The toolkit removes the secret from its environment before it
#: starts other processes.
JOB_TOKEN = "FLEETFIT_JOB_TOKEN"
#: A private folder (0700) for sockets and MPI's session files of this host. Default: a fresh temporary folder.
RUNTIME_DIR = "FLEETFIT_RUNTIME_DIR"
#: Inherited descriptor from which the toolkit reads the supervisor's messages. End-of-file means that the process that
#: started the toolkit has ended.
LIFELINE_FD = "FLEETFIT_LIFELINE_FD"
#: After the toolkit has received SIGTERM, the script gets this many seconds to save its state. Default 120, as on
#: SageMaker.
STOP_GRACE = "FLEETFIT_STOP_GRACE"
#: "1" when several hosts of the cluster share this machine (processes instead of containers or instances).
SHARED_MACHINE = "FLEETFIT_SHARED_MACHINE"
#: Path of this host's tree in a container that is kept between jobs; the tree becomes ``/opt/ml``.
TREE = "FLEETFIT_TREE"
#: Messages (:mod:`container.contract.messages`) on the lifeline, for backends that cannot send signals. The first gives
#: the script time to save its state before the job ends. The second ends the job at once.
SAY_STOP, SAY_END = b'{"op":"stop"}\n', b'{"op":"end"}\n'
#: Number of the cluster's hosts that are containers on this machine. These hosts share only the machine's cores.
HOSTS_HERE = "FLEETFIT_HOSTS_HERE"
#: In a job with parameter servers: how often a killed worker is restarted without restarting the job. Default 0.
WORKER_RESTARTS = "FLEETFIT_WORKER_RESTARTS"
#: Faults to inject into ranks after certain steps, to test the job's reaction: JSON of ``[{"id", "rank", "step",
#: "signal"}]``.
FAULTS = "FLEETFIT_FAULTS"
#: Ids of the faults that must not be injected again, because they were injected before a process restarted within the
#: attempt.
FAULTS_DONE = "FLEETFIT_FAULTS_DONE"
#: A JSON file that contains the variables with secret values (:data:`JOB_TOKEN`).
SECRETS_FILE = "FLEETFIT_SECRETS_FILE"
#: The folder of the machine's importers. An importer (:mod:`container.toolkit.importer`) is a process that imports the
#: script's packages once. Ranks are forked from it. The machine's hosts and the job's next attempt share the importers
#: in this folder. Default: each host has its own importer.
IMPORTERS = "FLEETFIT_IMPORTERS"
#: How many seconds unused importers are kept. Default 0.
KEEP_ALIVE = "FLEETFIT_KEEP_ALIVE"
#: Identifies the jobs for which importers are kept: a digest of the path of fleetfit's home folder, or the folder that
#: :data:`KEEP_IMPORTERS` names.
KEPT_FOR = "FLEETFIT_KEPT_FOR"
#: In the caller's environment: a folder in which the importers of ``local_process`` jobs are kept for ten minutes, for
#: jobs of any fleetfit home. If a job itself sets a time (:data:`KEEP_ALIVE`), the job's time is used.
KEEP_IMPORTERS = "FLEETFIT_KEEP_IMPORTERS"
#: The pid of a process on this machine, such as a notebook's kernel. When this process ends, kept importers end too,
#: even if the time of :data:`KEEP_ALIVE` is not over.
KEPT_WITH = "FLEETFIT_KEPT_WITH"
#: Seconds that hosts wait for each other at the start. Default 900 (SageMaker boots hosts minutes apart).
START_TIMEOUT = "FLEETFIT_START_TIMEOUT"

# --- the toolkit sets these for its processes ---

#: The address at which processes of other hosts reach the first host. On SageMaker, the name ``algo-1`` has this role.
MASTER_ADDR = "FLEETFIT_MASTER_ADDR"
#: Path of the toolkit's unix socket, to which rank wrappers and the rsh agent connect.
HOST_SOCKET = "FLEETFIT_HOST_SOCKET"
#: ``fd:inode`` of the pipe on which a rank writes events; the inode guards against a stale descriptor number.
EVENTS = "FLEETFIT_EVENTS"
#: Set to "1" if the ranks are Python programs that should join one cluster, so that ranks that do not join are noticed
#: (``hook/_fleetfit_evidence.py``).
EVIDENCE = "FLEETFIT_EVIDENCE"
#: A folder in shared memory for this host's MPI segments. OpenMPI names the segments by machine and local rank: without
#: this folder, hosts that share a machine would overwrite each other's segments.
SHARED_MEMORY_DIR = "FLEETFIT_SHARED_MEMORY_DIR"
#: The TMPDIR that the script gets. MPI's programs get a private folder instead. Empty if the script gets no TMPDIR.
USERS_TMPDIR = "FLEETFIT_USERS_TMPDIR"
#: The limit on open descriptors that the script gets, if mpirun runs with a lower limit.
USERS_OPEN_FILES = "FLEETFIT_USERS_OPEN_FILES"
#: Tells the wrapper of an elastic worker that the rest of its environment arrives later. "wait": start the command when
#: the rest has arrived. "ready": start the script at once. The script then waits in its ``hvd.init()``.
PLACE = "FLEETFIT_PLACE"
#: The descriptor on which a script gets the rest of its environment, as one line of JSON (``hook/sitecustomize.py``).
PLACE_FD = "FLEETFIT_PLACE_FD"
#: The number of ranks that an elastic job's global batch size and learning rate are meant for.
ELASTIC_PLANNED = "FLEETFIT_ELASTIC_PLANNED"
#: Set for a worker that joins when other workers already train. The worker must take over the model's state from them.
ELASTIC_LATE = "FLEETFIT_ELASTIC_LATE"
#: fleetfit replaces the values of some variables for OpenMPI 5's daemons (``daemons.node_environment``). Variables with
#: this prefix contain the original values, which the script gets.
USERS_PREFIX = "FLEETFIT_USERS_"
#: If set, the Python process that the toolkit has started becomes the machine's importer
#: (``toolkit/importer/server.py``). The value is ``LISTENER:SOCKET``: the descriptor of the listening socket, and the
#: socket's path.
IMPORTER = "FLEETFIT_IMPORTER"
#: In the job's environment. "0": no importer is started. "1": an importer is started even if the imports are fast.
FORK = "FLEETFIT_FORK"
#: The host's code folder. mpirun starts every rank in algo-1's code folder, although other hosts on the same machine
#: have different code folders.
CODE_DIR = "FLEETFIT_CODE_DIR"
#: The number of the signal on which a Python rank prints its stacks. Set if the job has a ``hang_timeout``.
STACK_SIGNAL = "FLEETFIT_STACK_SIGNAL"
#: The umask of the process that started the job, in octal. Scripts create files with this umask. fleetfit's own files
#: are readable only for the user.
UMASK = "FLEETFIT_UMASK"
#: The channels in Pipe mode, separated by commas, if each rank of a host has its own FIFOs.
PIPE_CHANNELS = "FLEETFIT_PIPE_CHANNELS"
#: A rank's number on its host, and the host's number of ranks, if mpirun does not set them.
LOCAL_RANK = "FLEETFIT_LOCAL_RANK"
LOCAL_SIZE = "FLEETFIT_LOCAL_SIZE"
#: Marks every process of a job, so that leftover processes can be found after a crash of the machine.
JOB_MARK = "FLEETFIT_JOB"
#: The folder for checkpoints; ``/opt/ml/checkpoints`` if that path is available.
CHECKPOINT_DIR = "SM_CHECKPOINT_DIR"

#: Removed from the environment before a training script starts.
TOOLKIT_ONLY = (
    ADDRESSES,
    CONTROL_ADDRESS,
    CONTROL_FD,
    IMPORTERS,
    JOB_TOKEN,
    KEEP_ALIVE,
    KEPT_FOR,
    KEPT_WITH,
    LIFELINE_FD,
    SECRETS_FILE,
    START_TIMEOUT,
)
