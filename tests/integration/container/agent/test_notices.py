"""The agent that watches the instance metadata service, against one with the paths of spot instances."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path

import imds

import container


def test_notices_come_as_lines_until_the_input_ends(tmp_path: Path) -> None:
    documents = tmp_path / "documents.json"
    server = imds.server("127.0.0.1", 0, documents)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    main = str(Path(next(iter(container.__path__))) / "__main__.py")
    agent = subprocess.Popen(
        [sys.executable, "-I", main, "agent", "notices", "--imds", url, "--every", "0.05"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert agent.stdin is not None and agent.stdout is not None

    def tell(**values: object) -> None:
        (tmp_path / "new").write_text(json.dumps(values))
        (tmp_path / "new").rename(documents)

    tell(**{"/latest/meta-data/events/recommendations/rebalance": "{}"})
    assert json.loads(agent.stdout.readline()) == {"notice": "rebalance"}
    tell(**{"/latest/meta-data/spot/instance-action": '{"action": "terminate"}', "forget-tokens": False})
    assert json.loads(agent.stdout.readline()) == {"notice": "interruption", "in_s": 120.0}
    server.shutdown()
    server.server_close()
    assert json.loads(agent.stdout.readline())["notice"] == "silence"
    agent.stdin.close()
    assert agent.wait(10) == 0
    agent.stdout.close()
