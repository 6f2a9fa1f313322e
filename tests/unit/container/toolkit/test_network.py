"""The network between hosts, found by address."""

from __future__ import annotations

import socket

import pytest

from container.system import interfaces
from container.toolkit.network import check_own_name, shared_network


def test_the_interface_that_has_the_address() -> None:
    found = interfaces.addresses()
    assert any(address is not None and address.ip.is_loopback for address in found.values())
    for name, address in found.items():
        if address is not None and not address.ip.is_loopback:
            other = str(address.network[0])
            assert shared_network(str(address.ip), other) == (name, str(address.network))
            assert shared_network(str(address.ip), "203.0.113.1") is None, "another network"


def test_names_that_say_nothing() -> None:
    assert shared_network("localhost", "localhost") is None
    assert shared_network("no-such-host.invalid", "localhost") is None


def test_a_machine_that_cannot_resolve_its_own_name_is_told_how_it_can(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    check_own_name("algo-2")
    for name in ("no-such-host.invalid", "a" * 70):
        monkeypatch.setattr(socket, "gethostname", lambda name=name: name)
        with pytest.raises(ValueError, match=rf"machine of algo-2 cannot .* '{name}'.*echo '127.0.1.1 {name}'"):
            check_own_name("algo-2")
