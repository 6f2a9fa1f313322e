"""What runs as the first process of an "instance": cloud-init, the metadata service and sshd, in namespaces of its own.

    python instance.py FOLDER ID

FOLDER has ``ID.json``: the address, user data, the login's public key, what to hide, and how it boots; and
``ID.imds.json``: what the metadata service says now. The process ends when the machine shuts down.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import imds
from hiding import hide


def main() -> None:
    folder, name = Path(sys.argv[1]), sys.argv[2]
    settings = json.loads((folder / f"{name}.json").read_text())
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))  # shutdown
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "proc", "proc", "/proc"], check=True)
    hide({settings["hidden"], "/tmp", "/dev/shm", "/run"}, also_keep=[str(folder)])
    os.makedirs("/run/sshd")
    os.makedirs("/tmp/home")
    socket.sethostname(name)
    hosts = Path("/tmp/.hosts")
    hosts.write_text(f"127.0.0.1 localhost\n{settings['address']} {name}\n")
    subprocess.run(["mount", "--bind", str(hosts), "/etc/hosts"], check=True)
    server = imds.server("169.254.169.254", 80, folder / f"{name}.imds.json")
    threading.Thread(target=server.serve_forever, daemon=True).start()
    boot(folder, name, settings)
    while True:
        try:
            os.wait()  # what nobody else waits for
        except ChildProcessError:
            signal.pause()


def boot(folder: Path, name: str, settings: dict[str, str]) -> None:
    """Do what cloud-init does with user data, then start sshd."""
    how = settings["boot"]
    head, _, text = settings["user_data"].partition("\n")
    assert head == "#cloud-config", head
    config = json.loads(text)
    programs = Path("/run/programs")
    programs.mkdir()
    (programs / "shutdown").write_text("#!/bin/sh\nkill -TERM 1\n")
    (programs / "shutdown").chmod(0o755)
    environment = {"PATH": f"{programs}:/usr/sbin:/usr/bin:/sbin:/bin"}
    for argv in config["bootcmd"]:
        subprocess.run(argv, check=True, env=environment)
    if how == "dies":
        os._exit(1)
    if how == "silent":
        return
    key = Path("/run/host_key")
    key.touch(mode=0o600)
    key.write_text(config["ssh_keys"]["ed25519_private"])
    authorized = Path("/run/authorized_keys")
    authorized.write_text(settings["login"])
    sshd = Path("/run/sshd.conf")
    variables = " ".join(f'"{name}={value}"' for name, value in settings["environment"].items())
    sshd.write_text(
        f"ListenAddress {settings['address']}\nPort 22\nHostKey {key}\nPidFile none\nUsePAM no\nStrictModes no\n"
        f"PasswordAuthentication no\nKbdInteractiveAuthentication no\nAuthorizedKeysFile {authorized}\n"
        f"PrintMotd no\nMaxStartups 100\nSetEnv {variables}\n"
    )
    with open(folder / f"{name}.log", "ab") as log:
        subprocess.Popen(["/usr/sbin/sshd", "-D", "-e", "-f", str(sshd)], stdin=subprocess.DEVNULL, stderr=log)


main()
