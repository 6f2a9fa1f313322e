"""What ``fleetfit doctor`` says of ssh and the default fleet."""

from __future__ import annotations

import os
import shutil

from estimators.backends.hosts.provider import Finding
from estimators.backends.ssh.machines import VARIABLE, SshOptions
from estimators.job.errors import ConfigurationError


def findings() -> list[Finding]:
    """Say whether there is ssh here, and which hosts a job would have that names none."""
    try:
        machines = SshOptions.of({}).machines()
    except ConfigurationError as error:
        return [Finding(name="ssh", ok=False, text=str(error), remedy="Correct the file or the variable.")]
    if shutil.which("ssh") is None:  # which is in nobody's way who has no hosts
        text = "the ssh program is not installed here (apt-get install openssh-client)"
        return [
            Finding(name="ssh", ok=False if machines else None, text=text, remedy="Install it." if machines else "")
        ]
    if not machines:
        text = "ssh is installed; name hosts with backend_options, $FLEETFIT_HOSTS or `fleetfit hosts add`"
        return [Finding(name="ssh", ok=None, text=text)]
    where = f"${VARIABLE}" if os.environ.get(VARIABLE) else "the default fleet"
    return [Finding(name="ssh", ok=True, text=f"hosts of {where}: {', '.join(machine.name for machine in machines)}")]
