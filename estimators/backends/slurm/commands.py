"""Build the command lines of Slurm's programs: sbatch with the allocation's batch script, and srun for the agents."""

from __future__ import annotations

from collections.abc import Collection

from estimators.backends.slurm.options import SlurmOptions

#: Prefix of every allocation's name.
PREFIX = "fleetfit-"

#: The allocation's batch script, which runs on the first node. The end of the script ends the allocation. The script
#: exits when the agent on its node has ended, or if no agent has started within 60 s. Therefore a job holds no nodes
#: after its supervisor's machine was lost. The script ignores SIGTERM, which is meant for the agents. Slurm may kill
#: the script before the script has removed its FIFO. Therefore the agent, too, removes the FIFO as soon as it is open.
SCRIPT = """#!/bin/sh
trap '' TERM
f="/tmp/fleetfit-slurm-$(id -u)-$SLURM_JOB_ID"
rm -f "$f"
mkfifo -m 600 "$f" || exit 1
(sleep 60; [ ! -p "$f" ] || : > "$f") & waiting=$!
cat "$f" > /dev/null
rm -f "$f"
kill "$waiting"
"""

#: Script that starts an agent on a node. ``$1``: the interpreter; ``$2``: the allocation if the batch script runs on
#: this node, otherwise empty. Slurm's variables are unset: otherwise, Open MPI would start its daemons by srun, and see
#: only the task that the agent runs in.
AGENT = r"""
if [ -n "$2" ]; then
  f="/tmp/fleetfit-slurm-$(id -u)-$2"; n=0
  until [ -p "$f" ] || [ "$n" -ge 200 ]; do sleep 0.05; n=$((n + 1)); done
  [ ! -p "$f" ] || { exec 9> "$f"; rm -f "$f"; }
fi
for name in $(env | sed -n 's/^\(SLURM[A-Z0-9_]*\)=.*/\1/p'); do unset "$name"; done
if ! command -v "$1" > /dev/null; then echo "there is no $1 on $(hostname)" >&2; exit 91; fi
exec "$1" -I -c 'import sys
try:
    import container.__main__ as main
except ImportError:
    sys.exit(f"{sys.executable} has no fleetfit")
sys.exit(main.main())' agent host
"""


def sbatch(options: SlurmOptions, job_name: str, nodes: int, avoided: Collection[str] = ()) -> list[str]:
    """Return the command that submits an allocation.

    Args:
        options: The options of the Slurm backend.
        job_name: The name of the fleetfit job.
        nodes: The number of nodes to request.
        avoided: The nodes to exclude. This argument is ignored if the user's options already name or exclude nodes.
    """
    words = ["sbatch", "--parsable", f"--job-name={PREFIX}{job_name}"]
    words += ["--output=/dev/null", "--error=/dev/null", "--input=/dev/null", "--chdir=/", *options.words(nodes)]
    if avoided and not {"exclude", "nodelist"} & set(options.plain):
        words.append(f"--exclude={','.join(sorted(avoided))}")
    return words


def srun(options: SlurmOptions, allocation: str, node: str, *, with_script: bool) -> list[str]:
    """Return the command that starts the agent on a node.

    Args:
        options: The options of the Slurm backend.
        allocation: The number of the allocation's Slurm job.
        node: The name of the node.
        with_script: Whether the allocation's batch script runs on this node.
    """
    return [
        "srun", f"--jobid={allocation}", f"--nodelist={node}", "--nodes=1", "--ntasks=1", "--overlap",
        "--mem=0", "--unbuffered", "--mpi=none", "--cpu-bind=none", "--kill-on-bad-exit=0", "--chdir=/tmp",
        "--job-name=fleetfit-agent", f"--export={','.join(options.export)}", "--quiet",
        "sh", "-c", AGENT, "fleetfit", options.python, allocation if with_script else "",
    ]  # fmt: skip
