"""Install our code on the machine of a Ray or Spark worker, and start the agent of a host on this machine.

The agent is the fleetfit process that controls the host. This module needs only the standard library. The cluster's
machines do not have this module, so it is sent to the worker together with the function that the worker calls. In the
supervisor, :mod:`.arrivals` accepts the agent's connection.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import io
import os
import secrets
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from typing import Any

#: Seconds within which a connection to the supervisor must be made.
_REACH_S = 10.0
#: Starts the agent as an orphan. Clusters kill the child processes of a worker that ends, but the agent has to clean up
#: when the worker has ended.
_ORPHAN = 'exec 3<&0; "$@" <&3 3<&- &'


def start_agent(asked: Mapping[str, Any], code: bytes, env: Mapping[str, str]) -> socket.socket:
    """Start a host's agent. The agent's standard input and output are a connection to the supervisor.

    Args:
        asked: The request of the supervisor. ``python`` is the path of the agent's interpreter, or None for this
            process's interpreter. ``version`` is the required Python version, and ``code`` the name of our code.
            ``address`` and ``port`` tell where the supervisor listens. ``identity`` and ``key`` identify the host.
        code: The archive of our code.
        env: The agent's environment variables.

    Returns:
        One end of a socket pair. The agent has the other end. Thus the agent and this process each detect when the
        other process has ended.

    Raises:
        OSError: the agent cannot be started. The message has the reason.
    """
    python = asked["python"] or sys.executable
    version = _version_of(python) if asked["python"] else "{}.{}".format(*sys.version_info)
    if version != asked["version"]:
        raise OSError(
            f"its Python is {version}, but fit() runs on {asked['version']}. Name another interpreter with "
            "backend_options={'python': …}"
        )
    package = _unpack(asked["code"], code)
    connection = connect(asked["address"], asked["port"], asked["identity"], asked["key"])
    own, theirs = socket.socketpair()
    words = [python, "-I", os.path.join(package, "container", "__main__.py"), "agent", "host"]
    words += ["--lifeline", str(theirs.fileno())]
    try:
        subprocess.run(
            ["sh", "-c", _ORPHAN, "sh", *words],
            stdin=connection.fileno(),
            stdout=connection.fileno(),
            pass_fds=[theirs.fileno()],
            env=env,
            cwd="/",
            start_new_session=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise OSError(f"the agent could not be started: {error}") from None
    finally:
        connection.close()
        theirs.close()
    return own


def _version_of(python: str) -> str:
    try:
        words = [python, "-I", "-c", "import sys; print(*sys.version_info[:2], sep='.')"]
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=30).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise OSError(f"{python} cannot be run there: {reason}. Name an interpreter that exists there") from None


def _unpack(name: str, archive: bytes) -> str:
    """Return the folder of our code on this machine. If no host on this machine has unpacked the code yet, unpack it.

    Raises:
        OSError: the code cannot be unpacked.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    problem: OSError | None = None
    for place in (
        os.path.join(cache, "fleetfit", "hosts"),
        os.path.join(tempfile.gettempdir(), f"fleetfit-{os.getuid()}"),  # if the home folder is not writable
    ):
        target = os.path.join(place, name)
        try:
            os.makedirs(place, mode=0o700, exist_ok=True)
            if os.stat(place).st_uid != os.getuid():
                raise OSError(f"{place} belongs to another user")
            if os.path.isdir(target):
                return target
            with tempfile.TemporaryDirectory(prefix=".code-", dir=place, ignore_cleanup_errors=True) as folder:
                with tarfile.open(fileobj=io.BytesIO(archive), mode="r:gz") as tar:
                    tar.extractall(folder)
                with contextlib.suppress(FileExistsError, NotADirectoryError):
                    os.rename(folder, target)
        except OSError as error:
            if os.path.isdir(target):  # another host on this node unpacked it meanwhile
                return target
            problem = error
        else:
            return target
    raise OSError(f"fleetfit's code could not be copied there: {problem}")


def connect(address: str, port: int, identity: str, key: str) -> socket.socket:
    """Connect to the supervisor. The host and the supervisor prove with an HMAC that they know the host's key.

    Raises:
        OSError: the connection fails, or a program without the key answers. The message has the reason.
    """
    secret = base64.b64decode(key)
    try:
        connection = socket.create_connection((address, port), timeout=_REACH_S)
    except OSError as error:
        raise OSError(
            f"it cannot connect to {address}:{port} on the machine that called fit() ({error}). Open that port, name "
            "another address with backend_options={'caller_address': …}, or call fit() on a machine of the cluster"
        ) from None
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        theirs, own = _exactly(connection, 32), secrets.token_bytes(32)
        shown = hmac.new(secret, b"host" + theirs + own, hashlib.sha256).digest()
        connection.sendall(base64.b64decode(identity) + own + shown)
        expected = hmac.new(secret, b"supervisor" + own + theirs, hashlib.sha256).digest()
        if not hmac.compare_digest(_exactly(connection, 32), expected):
            raise OSError("another program answers there")
    except OSError as error:
        connection.close()
        raise OSError(
            f"this host could not connect to the machine that called fit() ({address}:{port}): {error}"
        ) from None
    connection.settimeout(None)
    return connection


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise OSError("the connection was closed")
        data += more
    return data
