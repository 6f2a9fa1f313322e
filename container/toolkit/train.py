"""Run the toolkit: the process that runs a job on one host (``python -m container train``). Every backend starts it.

The process needs only the files that SageMaker gives a container under ``SAGEMAKER_BASE_DIR`` (default ``/opt/ml``).
The variables that a backend adds (:mod:`container.contract.variables`) are optional. The process exits with the codes
of SageMaker's training toolkit: 0 on success, and 1 if the script or the job has failed. The process also writes
``output/success`` or ``output/failure``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import json
import os
import signal
import site
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from container import launchers
from container.contract import hyperparameters as codec
from container.contract import variables, wire
from container.contract.environment import Environment, read_json_file
from container.contract.failures import Cause, Failure
from container.contract.hints import OWN_PATHS
from container.contract.layout import CODE_CHANNEL, DEFAULT_BASE_DIR, success_text
from container.contract.membership import Membership
from container.contract.names import unknown
from container.contract.plan import Plan
from container.contract.strategies import ElasticHorovod
from container.contract.wire import Event
from container.launchers import horovod_builds
from container.system import folders, processes
from container.system.files import cache_root
from container.system.holding import hold
from container.system.host_machine import this_machine
from container.system.loop import SelectorLoop
from container.system.openmpi import openmpi_prefix
from container.system.removing import remove_tree
from container.toolkit import hangs, network, ports, saved_models
from container.toolkit.code import code
from container.toolkit.evidence import MODES
from container.toolkit.importer import imports
from container.toolkit.output import Output
from container.toolkit.process_group import Gang, base_environment
from container.toolkit.runtime import HostSettings, Outcome, Runtime

if TYPE_CHECKING:
    from container.toolkit.code.requirements import Told

#: Default time between SIGTERM and SIGKILL when a job is stopped, in seconds, as on SageMaker.
DEFAULT_STOP_GRACE = 120.0
#: Default time limit for the start of hosts and ranks, in seconds. The limit is long, because SageMaker boots the hosts
#: of a cluster minutes apart.
DEFAULT_START_TIMEOUT = 900.0

_NAMED_MODELS = 3  # maximum number of paths in a warning about misplaced models
#: The interval of a toolkit's heartbeats, in seconds.
_HEARTBEAT_INTERVAL = 5.0

_STOPPED = 128 + signal.SIGTERM


def main(argv: list[str]) -> int:
    """Run the job on this host until it ends.

    Returns:
        0 on success, 1 if the job has failed, 2 if the command line is invalid, or 143 if the job was stopped.
    """
    if argv:
        print(f"python -m container train takes no arguments, got {argv}", file=sys.stderr)
        return 2
    if variables.UMASK in os.environ:
        os.umask(0o077)
    processes.become_subreaper()
    loop = SelectorLoop()
    output = Output(loop)
    base = Path(os.environ.get(variables.BASE_DIR) or DEFAULT_BASE_DIR)
    if variables.TREE in os.environ:
        _take_tree(Path(os.environ.pop(variables.TREE)), base)
    lifeline = _take_fd(variables.LIFELINE_FD)
    settings, made_runtime_dir = _settings()
    try:
        return _run(loop, output, base, settings, lifeline)
    finally:
        output.drain()
        if made_runtime_dir or lifeline is not None:
            _remove_runtime_dir(settings.runtime_dir)


def load_runtime(launcher: launchers.Launcher) -> type[Runtime]:
    """Import and return the class that runs a host's processes in the jobs of a launcher (``Launcher.runtime``)."""
    module, _, name = launcher.runtime.partition(":")
    runtime: type[Runtime] = getattr(importlib.import_module(module), name)
    return runtime


def _run(loop: SelectorLoop, output: Output, base: Path, settings: HostSettings, lifeline: int | None) -> int:
    host = "?"
    attempt = int(os.environ.get(variables.ATTEMPT) or 0)
    environment: Environment | None = None
    preparation: Preparation | None = None
    runtime: Runtime | None = None
    try:
        environment = read_environment(base)
        host = environment.current_host
        output.event(Event(kind="phase", host=host, attempt=attempt, data={"name": "toolkit_started"}))
        runtime = load_runtime(launchers.of(environment.strategy))(
            loop, output, environment, _with_job(settings, environment)
        )
        if lifeline is not None:
            runtime.follow(lifeline)
            _beat(loop, output)
        runtime.connect()
        try:
            preparation = Preparation(loop, output, environment, settings, runtime)
            preparation.start()
        except (ValueError, OSError, launchers.LaunchError) as error:
            runtime.fail(_configuration_failure(error, host))
        outcome = runtime.run()
    except (ValueError, OSError) as error:
        outcome = Outcome(failure=_configuration_failure(error, host))
    except Exception as error:  # noqa: BLE001 - any error must be reported as the job's failure
        import traceback

        outcome = Outcome(
            failure=Failure(
                cause=Cause.INTERNAL,
                message=f"fleetfit itself failed: {error!r}",
                host=host,
                traceback=traceback.format_exc(),
                hints=("This is a fault of fleetfit; please report it with the traceback.",),
            )
        )
    if outcome.failure is not None or outcome.stopped:
        processes.end_descendants(spare=runtime.spared if runtime is not None else ())
    elif runtime and environment and preparation and preparation.ready_at is not None:
        _tell_of_misplaced_models(runtime, environment, preparation.ready_at)
        _tell_of_opt_ml(runtime, environment, preparation.ready_at)
    return _conclude(output, base, host, attempt, outcome)


def _take_tree(tree: Path, base: Path) -> None:
    """Replace ``base`` by a link to this job's folder, in a container that is kept between jobs.

    Args:
        tree: The job's folder.
        base: The path that scripts use, normally ``/opt/ml``.
    """
    if base.is_dir() and not base.is_symlink():
        remove_tree(base)  # the image's own folder, which is empty
    base.parent.mkdir(parents=True, exist_ok=True)
    staged = base.with_name(f".{base.name}-{os.getpid()}")
    staged.symlink_to(tree)
    staged.replace(base)


def _beat(loop: SelectorLoop, output: Output) -> None:
    """Send a heartbeat to the supervisor every 5 seconds. A heartbeat shows that this toolkit is alive and not
    suspended.
    """
    if not output.congested:
        output.write(wire.HEARTBEAT)
    loop.call_later(_HEARTBEAT_INTERVAL, lambda: _beat(loop, output))


def shared_memory_dir(runtime_dir: Path) -> Path:
    """Return the host's folder in shared memory: ``/dev/shm/<job's folder>-<host>``."""
    return Path(folders.SHARED_MEMORY) / f"{runtime_dir.parent.name}-{runtime_dir.name}"


def _remove_runtime_dir(folder: Path) -> None:
    """Remove this host's private folder. Also remove the parent folder, which belongs to the job, if the parent folder
    is then empty.

    The toolkit removes the folders itself, because the supervisor may have ended earlier.
    """
    remove_tree(folder, ignore_errors=True)
    remove_tree(shared_memory_dir(folder), ignore_errors=True)
    folders.remove_if_empty(folder.parent)


def _configuration_failure(error: Exception, host: str) -> Failure:
    cause = Cause.LAUNCH if isinstance(error, launchers.LaunchError) else Cause.CONFIGURATION
    return Failure(cause=cause, message=str(error), host=host)


def _tell_of_misplaced_models(runtime: Runtime, environment: Environment, since: float) -> None:
    """Report to the supervisor the models that the script has saved in its working folder, if the model folder is
    empty. Only the model folder is uploaded.

    Args:
        runtime: The runtime, which sends the report.
        environment: The job as this host sees it.
        since: The time at which the preparation ended, in seconds since the epoch. Older files are ignored.
    """
    tree = environment.tree
    with contextlib.suppress(OSError):
        if any(tree.model.iterdir()):
            return
    found = saved_models.newer_than(tree.code, since)
    if found:
        runtime.tell("misplaced_model", paths=found[:_NAMED_MODELS], count=len(found))


def _tell_of_opt_ml(runtime: Runtime, environment: Environment, since: float) -> None:
    """Warn of files that the script has written into the machine's ``/opt/ml``, although this host uses a different
    folder. Such files are not uploaded.

    Args:
        runtime: The runtime, which sends the warning.
        environment: The job as this host sees it.
        since: The time at which the preparation ended, in seconds since the epoch. Older files are ignored.
    """
    if environment.tree.base == Path(DEFAULT_BASE_DIR):
        return
    folders_there = (os.path.join(DEFAULT_BASE_DIR, name) for name in ("checkpoints", "model", "output"))
    found = [os.path.join(there, name) for there in folders_there for name in saved_models.newer_than(there, since, "")]
    if found:
        text = f"the script has written into the machine's own folders, which are not saved: {', '.join(found[:3])}"
        runtime.tell("warning", message=f"{text}{' …' if found[3:] else ''}. {OWN_PATHS}")


def _conclude(output: Output, base: Path, host: str, attempt: int, outcome: Outcome) -> int:
    """Report how the job ended on this host, as an event and in a file (``success`` or ``failure``). Return the exit
    code.
    """
    output_dir = base / "output"
    if outcome.failure is not None:
        output.event(Event(kind="failure", host=host, attempt=attempt, data=outcome.failure.to_dict()))
        if not (output_dir / "failure").exists():  # the user's own failure file is kept
            _write(output, host, output_dir / "failure", outcome.failure.reason())
        return 1
    if outcome.stopped:
        output.event(Event(kind="stopped", host=host, attempt=attempt))
        return _STOPPED
    _write(output, host, output_dir / "success", success_text(attempt))
    return 0


def _write(output: Output, host: str, path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        output.say(host, f"{path} could not be written: {error}")


def read_environment(base: Path) -> Environment:
    """Read the host's configuration files.

    Raises:
        ValueError: a file is missing or invalid. The message names the file.
    """
    config = base / "input" / "config"
    hyperparameters = read_json_file(config / "hyperparameters.json", {})
    channels = read_json_file(config / "inputdataconfig.json", {})
    channels.pop(CODE_CHANNEL, None)
    return Environment.from_config(
        base_dir=base,
        machine=this_machine(with_mpi=codec.decode_value(hyperparameters.get("sagemaker_mpi_enabled")) is True),
        hyperparameters=hyperparameters,
        resource_config=read_json_file(config / "resourceconfig.json", {}),
        input_data_config=channels,
        job_name=os.environ.get(variables.JOB_NAME, ""),
        attempt=int(os.environ.get(variables.ATTEMPT) or 0),
        user_environment={name: os.environ[name] for name in codec.NAMING_VARIABLES if name in os.environ},
        addresses=json.loads(os.environ.pop(variables.ADDRESSES, "") or "{}"),
    )


class Preparation:
    """Copy the user's code, install its requirements, and then report that this host is ready.

    Copying a large source and installing requirements take time. Therefore the preparation runs in a thread, while the
    loop keeps responding.
    """

    def __init__(
        self, loop: SelectorLoop, output: Output, environment: Environment, settings: HostSettings, runtime: Runtime
    ) -> None:
        self._loop = loop
        self._output = output
        self._env = environment
        self._settings = settings
        self._runtime = runtime
        self._overlay: Path | None = None
        self._warnings: list[str] = []
        self._imports: imports.Imports | None = None
        self._error: Exception | None = None
        self._told = self._tells = -1  # the two ends of the pipe through which the thread sends lines
        self._installs = False  # whether the thread has sent a line
        #: When the preparation ended, in seconds since the epoch, or None. All files that the script writes are newer.
        self.ready_at: float | None = None

    def start(self) -> None:
        """Create the folders, and start the thread that copies the code and installs the requirements."""
        tree = self._env.tree
        for directory in tree.directories():
            directory.mkdir(parents=True, exist_ok=True)
        import threading

        self._told, self._tells = os.pipe()
        self._loop.add_reader(self._told, self._on_told)
        threading.Thread(target=self._work, daemon=True).start()

    # --- in the thread ---

    def log(self, line: str) -> None:
        """Print a line. The thread sends the line to the loop through a pipe, which is closed when the preparation is
        done.
        """
        os.write(self._tells, line.replace("\n", " ").encode("utf-8", "replace") + b"\n")

    def warn(self, text: str) -> None:
        """Record a warning. The warning is shown to the user when the preparation is done."""
        self._warnings.append(text)

    def _work(self) -> None:
        try:
            self._install()
        except Exception as error:  # noqa: BLE001 - passed to the loop's thread
            self._error = error
        finally:
            os.close(self._tells)

    def _install(self) -> None:
        if isinstance(self._env.strategy, ElasticHorovod):
            network.check_own_name(self._env.current_host)
        folder = self._env.tree.code
        self._overlay = install_code(self._env, self)
        runs_horovod = launchers.of(self._env.strategy).runs_horovod
        if self._env.program.endswith(".py"):
            self._imports = imports.read(folder / self._env.program, folder, horovod=runs_horovod)
        if runs_horovod:
            inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
            # Ranks can import the user's packages, but the toolkit itself cannot.
            paths = (str(self._overlay or ""), *inherited, *sys.path, site.getusersitepackages())
            installed = [path for path in paths if path]
            horovod_builds.check(folder / self._env.program, folder, installed, self._env.current_host)

    # --- on the loop ---

    def _on_told(self) -> None:
        if data := os.read(self._told, 1 << 16):
            if not self._installs:
                self._installs = True
                self._runtime.tell("phase", name="installing")
            self._output.say(self._env.current_host, data.decode("utf-8", "replace"))
            return
        self._loop.remove_reader(self._told)
        os.close(self._told)
        if self._runtime.is_over:
            return  # an importer that is started now would outlive the job, or leave its files
        if self._error is None:
            try:
                self._finish()
            except (ValueError, OSError, launchers.LaunchError) as error:
                self._error = error
        if self._error is not None:
            self._runtime.fail(_configuration_failure(self._error, self._env.current_host))

    def _finish(self) -> None:
        self.ready_at = time.time()
        env = self._env
        for text in self._warnings if env.is_master else ():  # the other hosts have the same warnings
            self._runtime.tell("warning", message=text)
        for warning in self.plan().warnings if env.is_master else ():
            self._output.say(env.current_host, f"warning: {warning}")
        needed = launchers.ports_per_host(env.strategy) if env.reserves_ports else 0
        reserved = ports.reserve(needed).numbers if needed else ()
        gang = Gang(
            self._loop,
            self._output,
            self._runtime,
            host=env.current_host,
            runtime_dir=self._settings.runtime_dir,
            environment=rank_environment(env, self._overlay, self._settings.runtime_dir),
            python=env.machine.python,
            package=env.machine.container_package,
        )
        if self._imports is not None:
            changed = launchers.ranks_variables(env, gang.environment)
            elastic = launchers.of(env.strategy).placed_by_script
            gang.start_importer(
                self._command,
                self._imports,
                changed,
                elastic=elastic,
                folder=self._settings.importers,
                keep=self._settings.keep_alive,
                keep_with=self._settings.kept_with,
            )
        hold("toolkit.before_ready")
        self._runtime.ready(self, gang, reserved)

    @functools.cached_property
    def _command(self) -> tuple[str, ...]:
        env = self._env
        return code.entry_command(env.program, env.tree.code, env.to_cmd_args(), env.machine.python)

    def plan(self, membership: Membership | None = None) -> Plan:
        """Return the plan of the job.

        Args:
            membership: The hosts that are in the cluster. If None, all hosts of the job are.
        """
        return launchers.plan_job(
            self._env if membership is None else _with_network(self._env), self._command, membership
        )


def install_code(env: Environment, told: Told) -> Path | None:
    """Copy the user's code into the code folder, and install missing packages.

    Returns:
        The folder of the packages that were installed for the code. None if no packages were missing.
    """
    folder = env.tree.code
    submit = env.toolkit_parameters.get(codec.SUBMIT_DIRECTORY)
    code.materialize(str(submit) if submit else None, folder, env.program)
    wanted, project = folder / "requirements.txt", folder if code.is_project(folder) else None
    if not wanted.is_file() and project is None:
        return None
    from container.toolkit.code import requirements

    return requirements.overlay(
        wanted if wanted.is_file() else None,
        python=env.machine.python,
        cache_root=cache_root(),
        told=told,
        project=project,
    )


def _with_network(env: Environment) -> Environment:
    """Return the environment, completed with the address of the network that the hosts share. mpirun gets this address.

    The names of this host and of the job's second host must be resolvable. The environment is returned unchanged on a
    shared machine, on hosts other than algo-1, for a job with a single host, or if no shared network is found.
    """
    if env.machine.shared or not env.is_master or len(env.hosts) == 1:
        return env
    mine, other = (env.addresses.get(host, host) for host in (env.current_host, env.hosts[1]))
    found = network.shared_network(mine, other)
    if found is None:
        return env
    return dataclasses.replace(env, machine=dataclasses.replace(env.machine, network=found[1]))


def rank_environment(env: Environment, overlay: Path | None, runtime_dir: Path) -> dict[str, str]:
    """Return the environment that all processes of this host share."""
    package = Path(env.machine.container_package)
    code_dir = str(env.tree.code)
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    python_path = [str(package / "hook"), code_dir, *([str(overlay)] if overlay else []), *inherited]
    if package.parent.name != "site-packages":
        python_path.append(str(package.parent))  # scripts import container.distributed and the like
    result = base_environment({**env.to_env_vars(), variables.JOB_MARK: env.job_name})
    result["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(python_path))
    result["PWD"] = result[variables.CODE_DIR] = code_dir
    result[variables.MASTER_ADDR] = "127.0.0.1" if env.machine.shared else env.addresses.get(env.master, env.master)
    for name, value in launchers.defaults(env).items():
        result.setdefault(name, value)
    if (prefix := openmpi_prefix(env.machine.python)) is not None:
        # PyPI's OpenMPI is relocated: without this, a script that calls MPI outside mpirun dies in MPI_Init.
        result.setdefault("OPAL_PREFIX", prefix)
    if env.strategy is not None and not launchers.of(env.strategy).membership_changes:
        is_python = env.program.endswith(".py") or not (env.tree.code / env.program).is_file()  # a module
        if is_python:
            result[variables.EVIDENCE] = "1"
    if env.framework_parameters.get(codec.HANG_TIMEOUT):
        result[variables.STACK_SIGNAL] = str(hangs.STACK_SIGNAL)
    piped = [name for name, config in env.input_data_config.items() if config.get("TrainingInputMode") == "Pipe"]
    if piped and env.strategy is not None and env.strategy.ranks_per_host > 1:
        result[variables.PIPE_CHANNELS] = ",".join(piped)
        result[variables.LOCAL_SIZE] = str(env.strategy.ranks_per_host)
    if env.machine.shared:
        folder = shared_memory_dir(runtime_dir)
        folder.mkdir(mode=0o700, exist_ok=True)
        folders.claim(folder)
        result[variables.SHARED_MEMORY_DIR] = str(folder)
    if overlay is not None and (overlay / "bin").is_dir():
        result["PATH"] = f"{overlay / 'bin'}{os.pathsep}{result['PATH']}"
    return result


def _settings() -> tuple[HostSettings, bool]:
    """Read the settings that the backend has chosen. Remove the backend's secrets from the environment.

    Returns:
        The settings, and whether this process has created the private folder.
    """
    runtime = os.environ.get(variables.RUNTIME_DIR)
    _read_secrets()
    address = os.environ.pop(variables.CONTROL_ADDRESS, None)
    importers = os.environ.pop(variables.IMPORTERS, None)
    return (
        HostSettings(
            token=os.environ.pop(variables.JOB_TOKEN, None),
            control_fd=_take_fd(variables.CONTROL_FD),
            control_address=_address(address) if address else None,
            start_timeout=float(os.environ.pop(variables.START_TIMEOUT, "") or DEFAULT_START_TIMEOUT),
            stop_grace=float(os.environ.get(variables.STOP_GRACE) or DEFAULT_STOP_GRACE),
            runtime_dir=Path(runtime) if runtime else folders.make(),
            worker_restarts=int(os.environ.pop(variables.WORKER_RESTARTS, "") or 0),
            importers=Path(importers) if importers else None,
            keep_alive=float(os.environ.pop(variables.KEEP_ALIVE, "") or 0.0),
            kept_with=int(os.environ.pop(variables.KEPT_WITH, "") or 0),
        ),
        runtime is None,
    )


def _read_secrets() -> None:
    path = os.environ.pop(variables.SECRETS_FILE, None)
    if path:
        secrets = read_json_file(Path(path))
        os.environ.update({name: secrets[name] for name in variables.TOOLKIT_ONLY if name in secrets})


def _with_job(settings: HostSettings, environment: Environment) -> HostSettings:
    hang_timeout = environment.framework_parameters.get(codec.HANG_TIMEOUT)
    return dataclasses.replace(
        settings,
        control_address=settings.control_address or (environment.master, variables.CONTROL_PORT),
        hang_timeout=float(hang_timeout) if hang_timeout else None,
        on_undistributed=_mode(environment, codec.ON_UNDISTRIBUTED),
        on_nan=_mode(environment, codec.ON_NAN),
    )


def _mode(environment: Environment, name: str) -> str:
    """Return the value of the job's parameter ``name``, which says how the job reacts to a problem in the training:
    "warn" or "fail". "warn" is the default.

    Raises:
        ValueError: the parameter is neither "warn" nor "fail".
    """
    mode = str(environment.framework_parameters.get(name) or "warn")
    if mode not in MODES:
        raise ValueError(unknown(name, mode, MODES))
    return mode


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host, int(port)


def _take_fd(name: str) -> int | None:
    text = os.environ.pop(name, None)
    if not text:
        return None
    fd = int(text)
    os.set_inheritable(fd, False)
    return fd
