"""Why ssh did not come through, from what it complains of."""

from __future__ import annotations

from pathlib import Path

import pytest

from estimators.backends.openssh.command import Destination, SshSettings, reason
from estimators.job.errors import ConfigurationError

SETTINGS = SshSettings(known_hosts=Path("/fleet/known_hosts"))
THERE = Destination(host="lab-1", user="ann", port=2222)
CHANGED = """@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Add correct host key in /fleet/known_hosts to get rid of this message.
Offending ED25519 key in /home/ann/.ssh/known_hosts:3
Host key for [lab-1]:2222 has changed and you have requested strict checking.
Host key verification failed.
"""


@pytest.mark.parametrize(
    ("complaint", "words"),
    [
        (CHANGED, ["host key has changed", "ssh-keygen -R '[lab-1]:2222' -f /home/ann/.ssh/known_hosts"]),
        ("Host key verification failed.", ["is not known", "`ssh -p 2222 -l ann lab-1 true`"]),
        (
            "ann@lab-1: Permission denied (publickey,password).",
            ["refused", "(publickey,password)", "ssh-copy-id ann@lab-1"],
        ),
        ("Permissions 0644 for '/k' are too open.\nbad permissions\nPermission denied", ["chmod 600"]),
        ("ssh: Could not resolve hostname lab-1: Name or service not known", ["the name cannot be resolved"]),
        ("ssh: connect to host lab-1 port 22: No route to host", ["no route", "VPN"]),
        ("ssh: connect to host lab-1 port 22: Connection timed out", ["did not answer", "firewall"]),
        ("Connection timed out during banner exchange", ["did not answer"]),
        ("ssh: connect to host lab-1 port 22: Connection refused", ["nothing listens"]),
        ("Received disconnect from 10.0.0.1: 2: Too many authentication failures", ["IdentitiesOnly"]),
        ("kex_exchange_identification: Connection closed by remote host", ["MaxStartups"]),
        ("Timeout, server lab-1 not responding.", ["15 s"]),
        ("/c: line 1: Bad configuration option: nonsense\n/c: terminating, 1 bad configuration options", ["wrong"]),
        ("mux_client_request_session: session request failed: Session open refused by peer", ["MaxSessions"]),
        ("something new", ["something new"]),
        ("", ["without a message"]),
    ],
)
def test_a_complaint_becomes_a_reason_with_a_remedy(complaint: str, words: list[str]) -> None:
    text = reason(complaint, SETTINGS, THERE)
    assert [word for word in words if word not in text] == []
    assert "\n" not in text and "{" not in text


@pytest.mark.parametrize("host", ["", "-oProxyCommand=x", "a b", "a\0b", "a@b"])
def test_what_ssh_would_take_for_an_option_is_no_host(host: str) -> None:
    with pytest.raises(ConfigurationError):
        Destination(host=host)


def test_the_users_configuration_and_the_fleets_keys_are_named() -> None:
    words = SshSettings(known_hosts=Path("/a b/known_hosts"), config=Path("/c"), options={"Compression": "yes"}).words()
    assert words[:3] == ["ssh", "-F", "/c"]
    assert 'UserKnownHostsFile="/a b/known_hosts" "~/.ssh/known_hosts" "~/.ssh/known_hosts2"' in words
    assert "Compression=yes" in words and "BatchMode=yes" in words and "StrictHostKeyChecking=accept-new" in words
