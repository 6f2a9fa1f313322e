"""A fleet's keys: one to log in with, one that its hosts show. They live as long as the supervisor."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

from estimators.job.errors import BackendError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Keys:
    """Two key pairs.

    Attributes:
        login: The private key's file.
        login_public: The public key.
        host: The private key that hosts show.
        host_public: Its public half.
    """

    login: Path
    login_public: str
    host: str
    host_public: str

    def known_hosts(self, alias: str) -> str:
        """Return ssh's line for hosts that are called so."""
        return f"{alias} {' '.join(self.host_public.split()[:2])}\n"


def make(folder: Path) -> Keys:
    """Make a fleet's keys in a private folder.

    Raises:
        BackendError: ssh-keygen is not there, or fails.
    """
    for name in ("login", "host"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "fleetfit", "-f", str(folder / name)]
        try:
            subprocess.run(argv, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        except FileNotFoundError:
            raise BackendError("ssh-keygen is not installed. Install it (apt-get install openssh-client).") from None
        except subprocess.CalledProcessError as error:
            raise BackendError(f"ssh-keygen failed: {error.stderr.strip()}.") from None
    host = folder / "host"
    private = host.read_text(encoding="utf-8")
    host.unlink()  # it is needed nowhere but on the hosts
    return Keys(
        login=folder / "login",
        login_public=(folder / "login.pub").read_text(encoding="utf-8"),
        host=private,
        host_public=(folder / "host.pub").read_text(encoding="utf-8").strip(),
    )
