"""A job's secrets: files that only its containers see, for ``docker inspect`` would show variables.

* the token by which the hosts know each other, and the caller's AWS credentials: a folder that is mounted;
* keys for sshd, where a launcher of others wants it: written into the containers themselves, and gone with them.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path

from container.contract import variables
from container.contract.strategies import MPI
from container.system import folders
from estimators.backends.docker import containers
from estimators.backends.docker.credentials import aws_credentials
from estimators.backends.docker.options import ContainerOptions
from estimators.job.errors import BackendError
from estimators.job.request import RunOptions, TrainingJobSpec

#: The channel with the launchers of the official SDK 3.x.
_OFFICIAL_DRIVERS = "sm_drivers"
_KEYGEN_TIMEOUT_S = 30


def write(folder: Path, token: str) -> dict[str, str]:
    """Write the token and the credentials of a host.

    Args:
        folder: The folder that becomes :data:`containers.SECRETS`.
        token: What the hosts show each other.

    Returns:
        The variables that say where these are.

    Raises:
        OSError: they cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # an image may run as any user; the folder around it is for us only
    _write(folder / Path(containers.SECRETS_FILE).name, json.dumps({variables.JOB_TOKEN: token}))
    there = {variables.SECRETS_FILE: containers.SECRETS_FILE}
    if (credentials := aws_credentials(os.environ)) is not None:
        _write(folder / Path(containers.CREDENTIALS_FILE).name, credentials)
        there["AWS_SHARED_CREDENTIALS_FILE"] = containers.CREDENTIALS_FILE
    return there


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)


# --- sshd ---


def wants_sshd(spec: TrainingJobSpec, options: RunOptions, *, toolkit: bool) -> bool:
    """Return whether a launcher of others will reach the hosts by ssh: ours does not.

    Those are the official toolkit's MPI, the official SDK 3.x's drivers, and what asks for it by the backend option
    ``sshd``.
    """
    asked = ContainerOptions.of(options.backend_options).sshd
    if asked is not None:
        return asked
    if len(spec.hosts) == 1:
        return False
    official = not toolkit and isinstance(spec.strategy, MPI)
    return official or any(channel.name == _OFFICIAL_DRIVERS for channel in spec.inputs)


def ssh_files(hosts: Sequence[str], environment: Sequence[str], *, now: float = 0.0) -> bytes:
    """Return what sshd and ssh need in a job's containers, as a tar archive of ``/``: everything is root's.

    One key is the hosts' and one is root's, both made for this job: each host lets the others in, and knows them.

    Args:
        hosts: The hosts' names.
        environment: The image's variables, ``NAME=value``, which a login by ssh would not have.
        now: The files' time, in seconds since the epoch.

    Raises:
        BackendError: there is no ``ssh-keygen`` on this machine, or it fails.
    """
    program = shutil.which("ssh-keygen")
    if program is None:
        raise BackendError(
            "ssh-keygen is not installed, but is needed to make the keys for sshd. Run `sudo apt-get install "
            "openssh-client`."
        )
    with folders.temporary("keys") as folder:  # of mode 0700
        keys = {name: _key(program, folder / name) for name in ("host", "user")}
    known = f"{','.join(hosts)} {keys['host'][1]}"
    settings = " ".join(f'"{item}"' for item in environment if '"' not in item and "\n" not in item)
    policy = "PermitRootLogin prohibit-password\nPasswordAuthentication no\n"
    files = {
        "etc/ssh/ssh_host_ed25519_key": (keys["host"][0], 0o600),
        "etc/ssh/ssh_host_ed25519_key.pub": (keys["host"][1], 0o644),
        "etc/ssh/sshd_config.d/fleetfit.conf": (policy + (f"SetEnv {settings}\n" if settings else ""), 0o644),
        "root/.ssh/id_ed25519": (keys["user"][0], 0o600),
        "root/.ssh/id_ed25519.pub": (keys["user"][1], 0o644),
        "root/.ssh/authorized_keys": (keys["user"][1], 0o600),
        "root/.ssh/known_hosts": (known, 0o600),
    }
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, mode in (("root/.ssh", 0o700), ("etc/ssh/sshd_config.d", 0o755), ("run/sshd", 0o755)):
            entry = tarfile.TarInfo(name)
            entry.type, entry.mode, entry.mtime = tarfile.DIRTYPE, mode, int(now)
            tar.addfile(entry)
        for name, (text, mode) in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(text.encode()), mode, int(now)
            tar.addfile(entry, io.BytesIO(text.encode()))
    return archive.getvalue()


def _key(program: str, path: Path) -> tuple[str, str]:
    """Return a new pair: the private key's text and the public one's."""
    words = [program, "-q", "-t", "ed25519", "-N", "", "-C", "fleetfit", "-f", str(path)]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=_KEYGEN_TIMEOUT_S)
    if done.returncode != 0:
        raise BackendError(f"ssh-keygen failed: {(done.stderr or done.stdout).strip()}")
    return path.read_text(encoding="utf-8"), path.with_suffix(".pub").read_text(encoding="utf-8").strip() + "\n"
