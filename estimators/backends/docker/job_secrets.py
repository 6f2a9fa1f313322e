"""Write a job's secrets into files that only the job's containers can read.

Environment variables would not be secret, because ``docker inspect`` shows them.

* The token with which the hosts authenticate, and the caller's AWS credentials, are written into a folder that is
  mounted.
* Keys for sshd are written into the containers if the job uses a launcher that needs sshd. fleetfit's own launchers do
  not need sshd. The keys are deleted together with the containers.
"""

from __future__ import annotations

import configparser
import io
import json
import os
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from container.contract import variables
from container.contract.strategies import MPI
from container.system import folders
from estimators.backends.docker.options import SECRETS, ContainerOptions
from estimators.backends.hosts.keys import make_key
from estimators.job.request import RunOptions, TrainingJobSpec

_FILE, _CREDENTIALS = "secrets.json", "credentials"
_KEYS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")
#: The channel that contains the launchers of the official SageMaker SDK 3.x.
_OFFICIAL_DRIVERS = "sm_drivers"


def write(folder: Path, token: str) -> dict[str, str]:
    """Write a host's token and AWS credentials, and return the environment variables with the paths of the files.

    Args:
        folder: The folder that is mounted as :data:`SECRETS`.
        token: The token with which the hosts authenticate to each other.

    Raises:
        OSError: a file cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # an image may run as any user; only we can open the parent folder
    texts = {_FILE: json.dumps({variables.JOB_TOKEN: token}), _CREDENTIALS: aws_credentials(os.environ)}
    for name, text in texts.items():
        if text:
            (folder / name).write_text(text, encoding="utf-8")
            (folder / name).chmod(0o644)
    there = {variables.SECRETS_FILE: f"{SECRETS}/{_FILE}"}
    return {**there, "AWS_SHARED_CREDENTIALS_FILE": f"{SECRETS}/{_CREDENTIALS}"} if texts[_CREDENTIALS] else there


def aws_credentials(environment: Mapping[str, str]) -> str:
    """Return the text of a shared credentials file in which the caller's profile is named ``default``.

    Return "" if the caller has no credentials. Environment variables take precedence over the caller's credentials
    file, as in boto3. Credentials that have to be fetched (SSO, roles, instance metadata) are not included. A user
    whose script needs such credentials passes them in the job's ``environment``.
    """
    given = configparser.RawConfigParser()
    values = {key: environment[key.upper()] for key in _KEYS if environment.get(key.upper())}
    if not values.keys() >= {*_KEYS[:2]}:
        home = environment.get("HOME") or str(Path.home())
        profile = environment.get("AWS_PROFILE") or "default"
        try:
            given.read(environment.get("AWS_SHARED_CREDENTIALS_FILE") or f"{home}/.aws/credentials", encoding="utf-8")
        except (configparser.Error, OSError, UnicodeDecodeError):
            return ""
        values = {key: given.get(profile, key) for key in _KEYS if given.get(profile, key, fallback="")}
    text = io.StringIO()
    if values:
        parser = configparser.RawConfigParser()
        parser["default"] = values
        parser.write(text)
    return text.getvalue()


# --- sshd ---


def wants_sshd(spec: TrainingJobSpec, options: RunOptions, *, toolkit: bool) -> bool:
    """Return whether a launcher other than ours will reach the hosts by ssh.

    Such launchers are the official toolkit's MPI launcher and the drivers of the official SageMaker SDK 3.x. The
    backend option ``sshd`` overrides the result.
    """
    asked = ContainerOptions.of(options.backend_options).sshd
    if asked is not None:
        return asked
    official = not toolkit and isinstance(spec.strategy, MPI)
    return len(spec.hosts) > 1 and (official or any(one.name == _OFFICIAL_DRIVERS for one in spec.inputs))


def ssh_files(hosts: Sequence[str], environment: Sequence[str], *, now: float = 0.0) -> bytes:
    """Return the files that sshd and ssh need in a job's containers, as a tar archive for ``/``. All files belong to
    root.

    Two key pairs are created for the job: a host key that all hosts share, and a login key that root uses on all hosts.
    Each host thus accepts the logins of the other hosts and knows their host key.

    Args:
        hosts: The names of the hosts.
        environment: The image's environment variables, as ``NAME=value``. An ssh login would not get them without these
            files.
        now: The modification time of the files, in seconds since the epoch.

    Raises:
        BackendError: ``ssh-keygen`` is not installed on this machine, or fails.
    """
    with folders.temporary("keys") as folder:  # of mode 0700
        (host_key, host_public), (user_key, user_public) = (make_key(folder / name) for name in ("host", "user"))
    variables_set = " ".join(f'"{item}"' for item in environment if '"' not in item and "\n" not in item)
    policy = "PermitRootLogin prohibit-password\nPasswordAuthentication no\n"
    entries: dict[str, tuple[str | None, int]] = {
        "root/.ssh": (None, 0o700),
        "etc/ssh/sshd_config.d": (None, 0o755),
        "run/sshd": (None, 0o755),
        "etc/ssh/ssh_host_ed25519_key": (host_key, 0o600),
        "etc/ssh/ssh_host_ed25519_key.pub": (host_public, 0o644),
        "etc/ssh/sshd_config.d/fleetfit.conf": (policy + (f"SetEnv {variables_set}\n" if variables_set else ""), 0o644),
        "root/.ssh/id_ed25519": (user_key, 0o600),
        "root/.ssh/id_ed25519.pub": (user_public, 0o644),
        "root/.ssh/authorized_keys": (user_public, 0o600),
        "root/.ssh/known_hosts": (f"{','.join(hosts)} {host_public}", 0o600),
    }
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, (text, mode) in entries.items():
            entry, content = tarfile.TarInfo(name), (text or "").encode()
            entry.type = tarfile.DIRTYPE if text is None else tarfile.REGTYPE
            entry.size, entry.mode, entry.mtime = len(content), mode, int(now)
            tar.addfile(entry, io.BytesIO(content))
    return archive.getvalue()
