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
#: Number of this start of the job, from 0.
ATTEMPT = "FLEETFIT_ATTEMPT"
#: Inherited descriptor of the listening control socket (for algo-1 if hosts share a machine, where ports are not
#: fixed).
CONTROL_FD = "FLEETFIT_CONTROL_FD"
#: ``address:port`` of algo-1's control socket. Default: algo-1's host name and :data:`CONTROL_PORT`.
CONTROL_ADDRESS = "FLEETFIT_CONTROL_ADDRESS"
#: The fixed port of the control connection between containers.
CONTROL_PORT = 7711
#: The hosts' addresses as JSON, ``{"algo-1": "10.0.0.5"}``, if the hosts' names do not resolve. Such hosts may also run
#: other jobs: ports are therefore reserved, not fixed.
ADDRESSES = "FLEETFIT_ADDRESSES"
#: A secret with which hosts of the same job authenticate; removed from the environment before anything else starts.
JOB_TOKEN = "FLEETFIT_JOB_TOKEN"
#: A private folder (0700) for sockets and MPI's session files of this host. Default: a fresh temporary folder.
RUNTIME_DIR = "FLEETFIT_RUNTIME_DIR"
#: Inherited descriptor with the supervisor's messages. End-of-file means that the process that started the toolkit has
#: ended.
LIFELINE_FD = "FLEETFIT_LIFELINE_FD"
#: Seconds that the script has to save after a SIGTERM to the toolkit. Default 120, as on SageMaker.
STOP_GRACE = "FLEETFIT_STOP_GRACE"
#: "1" when several hosts of the cluster share this machine (processes instead of containers or instances).
SHARED_MACHINE = "FLEETFIT_SHARED_MACHINE"
#: Path of this host's tree in a container that is kept between jobs; the tree becomes ``/opt/ml``.
TREE = "FLEETFIT_TREE"
#: Messages (:mod:`container.contract.messages`) on the lifeline, for backends that cannot send signals: stop with time
#: to save; end at once.
SAY_STOP, SAY_END = b'{"op":"stop"}\n', b'{"op":"end"}\n'
#: Maximum size, in bytes, of the message with a job's variables to a container that is kept. CreateTrainingJob limits
#: the environment.
VARIABLES_LIMIT = 16 << 20
#: Number of the cluster's hosts that share this machine's cores but nothing else (containers).
HOSTS_HERE = "FLEETFIT_HOSTS_HERE"
#: How often a killed worker of parameter servers is restarted without restarting the job. Default 0.
WORKER_RESTARTS = "FLEETFIT_WORKER_RESTARTS"
#: Faults to inject into ranks after some step, as a rehearsal: JSON of ``[{"id", "rank", "step", "signal"}]``.
FAULTS = "FLEETFIT_FAULTS"
#: Ids of the faults that were injected before this process started, for processes that restart within an attempt.
FAULTS_DONE = "FLEETFIT_FAULTS_DONE"
#: A JSON file with more of these variables: those with secret values (:data:`JOB_TOKEN`).
SECRETS_FILE = "FLEETFIT_SECRETS_FILE"
#: The folder of the machine's importers (:mod:`container.toolkit.importer`), which the machine's hosts and the job's
#: next attempt share. Default: each host has its own importer.
IMPORTERS = "FLEETFIT_IMPORTERS"
#: How many seconds unused importers are kept (default 0), and for which jobs: a digest of the home, or the folder that
#: :data:`KEEP_IMPORTERS` names.
KEEP_ALIVE = "FLEETFIT_KEEP_ALIVE"
KEPT_FOR = "FLEETFIT_KEPT_FOR"
#: In the caller's environment: a folder in which the importers of ``local_process`` jobs are kept for ten minutes, for
#: jobs of any home. A job's own setting of this time takes precedence.
KEEP_IMPORTERS = "FLEETFIT_KEEP_IMPORTERS"
#: A process of the machine, such as a notebook's kernel: when it ends, kept importers end earlier.
KEPT_WITH = "FLEETFIT_KEPT_WITH"
#: Seconds that hosts wait for each other at the start. Default 900 (SageMaker boots hosts minutes apart).
START_TIMEOUT = "FLEETFIT_START_TIMEOUT"

# --- the toolkit sets these for its processes ---

#: The address of the first host for processes of other hosts, as the name ``algo-1`` is on SageMaker.
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
#: The script's own TMPDIR, while MPI's programs have a private one; empty for none.
USERS_TMPDIR = "FLEETFIT_USERS_TMPDIR"
#: The script's own limit of open descriptors, if mpirun has a lower limit.
USERS_OPEN_FILES = "FLEETFIT_USERS_OPEN_FILES"
#: Tells the wrapper of an elastic worker that the rest of its environment arrives later. "wait": start the command only
#: then. "ready": start the script, which waits in its ``hvd.init()``.
PLACE = "FLEETFIT_PLACE"
#: The descriptor on which a script gets the rest of its environment, as one line of JSON (``hook/sitecustomize.py``).
PLACE_FD = "FLEETFIT_PLACE_FD"
#: The number of ranks that an elastic job's global batch size and learning rate are meant for.
ELASTIC_PLANNED = "FLEETFIT_ELASTIC_PLANNED"
#: Set for a worker that joins when other workers already train; the worker must take over their state.
ELASTIC_LATE = "FLEETFIT_ELASTIC_LATE"
#: Prefix of the variables that hold the user's own values of variables for OpenMPI 5's daemons
#: (``daemons.node_environment``).
USERS_PREFIX = "FLEETFIT_USERS_"
#: Makes a Python process of the toolkit the machine's importer (``toolkit/importer/server.py``): ``LISTENER:SOCKET``, a
#: descriptor and the path of its socket.
IMPORTER = "FLEETFIT_IMPORTER"
#: In the job's environment: "0" starts no importer; "1" starts one even if the imports are fast.
FORK = "FLEETFIT_FORK"
#: The host's code folder. mpirun starts every rank in algo-1's code folder; other hosts on the same machine have their
#: own.
CODE_DIR = "FLEETFIT_CODE_DIR"
#: The number of the signal on which a Python rank prints its stacks; set when the job has a hang timeout.
STACK_SIGNAL = "FLEETFIT_STACK_SIGNAL"
#: The caller's umask in octal. Only the user can read fleetfit's own files; files of scripts get the user's umask.
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
