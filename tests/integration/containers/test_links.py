"""Links that are made slower, measured by bytes between two containers."""

from __future__ import annotations

import clusters
import pytest

from estimators.backends.docker import links


def test_a_slower_link_carries_its_rate_in_both_directions(make: clusters.Make) -> None:
    why = links.refusal()
    if why is not None:
        pytest.skip(why)
    job = make.run(
        """
        import os, socket, time
        import aid
        SIZE = 4 << 20

        def receive(peer):
            left = SIZE
            while left:
                left -= len(peer.recv(min(left, 1 << 20)))

        if aid.HOST == "algo-1":
            server = socket.create_server(("", 7000))
            aid.mark("listening")
            peer, _ = server.accept()
        else:
            aid.wait_for("listening")
            peer = socket.create_connection(("algo-1", 7000))
        for sender in ("algo-1", "algo-2"):
            if aid.HOST == sender:
                began = time.monotonic()  # a receiver may begin after the first bytes
                peer.sendall(bytes(SIZE))
                peer.recv(1)
                aid.report(seconds=time.monotonic() - began)
            else:
                receive(peer)
                peer.sendall(b"x")
        """,
        hosts=2,
        options={"backend_options": {"link_rate": "40mbit"}},
    )
    ideal_s = (4 << 20) * 8 / 40e6
    said = clusters.reports(job)
    assert sorted(said) == [0, 1]
    for report in said.values():
        # The bucket's first bytes go at once; TCP may take a moment to find the rate.
        assert 0.7 * ideal_s < report["seconds"] < 6 * ideal_s, said
