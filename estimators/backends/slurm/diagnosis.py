"""Check whether Slurm can be used, for ``fleetfit doctor``."""

from __future__ import annotations

from estimators.backends.hosts.provider import Finding
from estimators.backends.slurm import keeper


def findings() -> list[Finding]:
    """Return a finding about this machine's Slurm cluster and the cluster's partitions."""
    if not keeper.configured():  # the usual case
        text = "this machine belongs to no Slurm cluster; jobs on Slurm start from a login node"
        return [Finding(name="slurm", ok=None, text=text)]
    code, said, error = keeper.command(["sinfo", "--noheader", "--format=%P %a %D %A"], seconds=10)
    if code != 0:
        remedy = "`scontrol ping` says whether the controller runs; slurm.conf or $SLURM_CONF has its address."
        return [Finding(name="slurm", ok=False, text=f"Slurm does not answer: {error}", remedy=remedy)]
    parts = []
    for line in said.splitlines():
        name, up, nodes, states = (*line.split(), "", "", "", "")[:4]
        idle = states.partition("/")[2]
        default = " (default)" if name.endswith("*") else ""
        parts.append(f"{name.rstrip('*')}{default}: {nodes} nodes, {idle} idle{'' if up == 'up' else f', {up}'}")
    return [Finding(name="slurm", ok=True, text=f"partitions {'; '.join(parts)}")]
