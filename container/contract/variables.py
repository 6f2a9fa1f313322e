"""Environment variables that pass between a backend, the toolkit, its ranks and the training script.

The ``SM_*`` variables of the training script are SageMaker's own and live in :mod:`container.contract.environment`.
All of these are optional: on SageMaker none is set.
"""

from __future__ import annotations

# --- a backend sets these for `python -m container train` ---

#: Root of the host's tree, SageMaker's own variable. Default ``/opt/ml``.
BASE_DIR = "SAGEMAKER_BASE_DIR"
#: The job's name, SageMaker's own variable.
JOB_NAME = "TRAINING_JOB_NAME"
#: Number of this start of the job, from 0.
ATTEMPT = "FLEETFIT_ATTEMPT"
#: Inherited descriptor of the listening control socket (algo-1 on one machine, where ports are not fixed).
CONTROL_FD = "FLEETFIT_CONTROL_FD"
#: ``address:port`` of algo-1's control socket. Default: algo-1's host name and :data:`CONTROL_PORT`.
CONTROL_ADDRESS = "FLEETFIT_CONTROL_ADDRESS"
#: The fixed port of the control connection between containers.
CONTROL_PORT = 7711
#: Where the hosts reach each other, as JSON of ``{"algo-1": "10.0.0.5"}``, where their names do not resolve. They may
#: have other jobs beside this one: ports are reserved, and not fixed.
ADDRESSES = "FLEETFIT_ADDRESSES"
#: A secret that hosts of the same job show each other; removed from the environment before anything else starts.
JOB_TOKEN = "FLEETFIT_JOB_TOKEN"
#: A private folder (0700) for sockets and MPI's session files of this host. Default: a fresh temporary folder.
RUNTIME_DIR = "FLEETFIT_RUNTIME_DIR"
#: Inherited descriptor that brings the supervisor's messages, and whose end-of-file means that whoever started the
#: toolkit is gone.
LIFELINE_FD = "FLEETFIT_LIFELINE_FD"
#: Seconds that the script has to save after a SIGTERM to the toolkit. Default 120, as on SageMaker.
STOP_GRACE = "FLEETFIT_STOP_GRACE"
#: "1" when several hosts of the cluster share this machine (processes instead of containers or instances).
SHARED_MACHINE = "FLEETFIT_SHARED_MACHINE"
#: Where a container that is kept between jobs sees this host's tree, which becomes ``/opt/ml``.
TREE = "FLEETFIT_TREE"
#: Messages (:mod:`container.contract.messages`) on the lifeline, where no signal can be sent: stop with time to save;
#: end at once.
SAY_STOP, SAY_END = b'{"op":"stop"}\n', b'{"op":"end"}\n'
#: The longest message in bytes that brings a job's variables to a container that is kept. CreateTrainingJob limits the
#: environment.
VARIABLES_LIMIT = 16 << 20
#: How many hosts of the cluster share this machine's cores, where each has everything else of its own (containers).
HOSTS_HERE = "FLEETFIT_HOSTS_HERE"
#: How often a killed worker of parameter servers is started again without a restart of the job. Default 0.
WORKER_RESTARTS = "FLEETFIT_WORKER_RESTARTS"
#: What ranks do after some step, to rehearse faults: JSON of ``[{"id", "rank", "step", "signal"}]``.
FAULTS = "FLEETFIT_FAULTS"
#: The faults of it that were injected before the process started, where that starts again within an attempt: their ids.
FAULTS_DONE = "FLEETFIT_FAULTS_DONE"
#: A file of JSON with more of these variables: those whose values nobody else may see (:data:`JOB_TOKEN`).
SECRETS_FILE = "FLEETFIT_SECRETS_FILE"
#: The folder of the machine's importers (:mod:`container.toolkit.importer`), which the hosts there share, and those of
#: the job's next attempt. Default: each host has one of its own.
IMPORTERS = "FLEETFIT_IMPORTERS"
#: How many seconds these are kept when nobody needs them. Default 0. And whose jobs find them: a digest of the home, or
#: the folder that :data:`KEEP_IMPORTERS` names.
KEEP_ALIVE = "FLEETFIT_KEEP_ALIVE"
KEPT_FOR = "FLEETFIT_KEPT_FOR"
#: In the caller's environment: a folder in which the importers of ``local_process`` jobs are kept for ten minutes,
#: whichever home a job is of, unless the job says how long itself.
KEEP_IMPORTERS = "FLEETFIT_KEEP_IMPORTERS"
#: A process of the machine with which these end before that: a notebook's kernel.
KEPT_WITH = "FLEETFIT_KEPT_WITH"
#: Seconds that hosts wait for each other at the start. Default 900 (SageMaker boots hosts minutes apart).
START_TIMEOUT = "FLEETFIT_START_TIMEOUT"

# --- the toolkit sets these for its processes ---

#: Where processes of other hosts reach the first host: what ``algo-1`` is on SageMaker, where the name resolves.
MASTER_ADDR = "FLEETFIT_MASTER_ADDR"
#: Path of the toolkit's unix socket, to which rank wrappers and the rsh agent connect.
HOST_SOCKET = "FLEETFIT_HOST_SOCKET"
#: ``fd:inode`` of the pipe on which a rank writes events; the inode guards against a stale descriptor number.
EVENTS = "FLEETFIT_EVENTS"
#: Set to "1" where the ranks are Python programs that are to join each other, so that those that do not are noticed
#: (``hook/_fleetfit_evidence.py``).
EVIDENCE = "FLEETFIT_EVIDENCE"
#: A folder in shared memory for this host's MPI segments. OpenMPI names them by machine and local rank, so that hosts
#: that share a machine would write into each other's.
SHARED_MEMORY_DIR = "FLEETFIT_SHARED_MEMORY_DIR"
#: The script's own TMPDIR, while MPI's programs have a private one; empty for none.
USERS_TMPDIR = "FLEETFIT_USERS_TMPDIR"
#: The script's own limit of open descriptors, where mpirun has a lower one.
USERS_OPEN_FILES = "FLEETFIT_USERS_OPEN_FILES"
#: Tells the wrapper of an elastic worker that it gets the rest of its environment later: "wait" for it before the
#: command is started, or let the script go on to its ``hvd.init()`` ("ready").
PLACE = "FLEETFIT_PLACE"
#: The descriptor on which a script gets the rest of its environment, as one line of JSON (``hook/sitecustomize.py``).
PLACE_FD = "FLEETFIT_PLACE_FD"
#: How many ranks an elastic job was planned for: what its global batch size and learning rate are meant for.
ELASTIC_PLANNED = "FLEETFIT_ELASTIC_PLANNED"
#: Set for a worker that gets its place when others train already, and have a state that it must take from them.
ELASTIC_LATE = "FLEETFIT_ELASTIC_LATE"
#: The user's own values of what OpenMPI 5's daemons are told (``daemons.node_environment``), by this prefix.
USERS_PREFIX = "FLEETFIT_USERS_"
#: Makes a Python of the toolkit's the machine's importer (``toolkit/importer/server.py``): ``LISTENER:SOCKET``, a
#: descriptor and its path.
IMPORTER = "FLEETFIT_IMPORTER"
#: In the job's environment: "0" starts no importer, "1" also one for what is imported fast.
FORK = "FLEETFIT_FORK"
#: The host's code folder. mpirun starts every rank in algo-1's, which on one machine is another.
CODE_DIR = "FLEETFIT_CODE_DIR"
#: The number of the signal on which a Python rank prints its stacks; set when the job has a hang timeout.
STACK_SIGNAL = "FLEETFIT_STACK_SIGNAL"
#: The caller's umask in octal. Our own files are the user's only; the scripts' are made as the user is used to.
UMASK = "FLEETFIT_UMASK"
#: The channels in Pipe mode, separated by commas, where each rank of a host has FIFOs of its own.
PIPE_CHANNELS = "FLEETFIT_PIPE_CHANNELS"
#: A rank's number on its host, and how many ranks the host has, where mpirun does not say it.
LOCAL_RANK = "FLEETFIT_LOCAL_RANK"
LOCAL_SIZE = "FLEETFIT_LOCAL_SIZE"
#: Marks every process of a job, so that leftovers of a crashed machine can be found.
JOB_MARK = "FLEETFIT_JOB"
#: Where checkpoints go; ``/opt/ml/checkpoints`` wherever that path can be had.
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
