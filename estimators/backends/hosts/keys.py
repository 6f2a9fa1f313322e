"""Create ssh keys for one job."""

from __future__ import annotations

import subprocess
from pathlib import Path

from estimators.job.errors import BackendError

_TIMEOUT_S = 30.0


def make_key(path: Path) -> tuple[str, str]:
    """Create a key pair. The private key is stored at ``path``, and the public key next to the private key.

    Returns:
        The texts of the private and the public key.

    Raises:
        BackendError: ssh-keygen is not installed, or fails.
    """
    argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "fleetfit", "-f", str(path)]
    try:
        subprocess.run(argv, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=_TIMEOUT_S)
    except FileNotFoundError:
        raise BackendError("ssh-keygen is not installed. Install it (apt-get install openssh-client).") from None
    except subprocess.CalledProcessError as error:
        raise BackendError(f"ssh-keygen failed: {(error.stderr or error.stdout).strip()}.") from None
    return path.read_text(encoding="ascii"), path.with_suffix(".pub").read_text(encoding="ascii")
