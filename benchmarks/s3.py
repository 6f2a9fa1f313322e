"""Reading one large object of S3: clients beside each other, and through the host agent into a FIFO.

The server is `fleetfit s3` on this machine, so what is compared is what the clients cost: on real S3 the network
bounds all of them, and clients with several connections get more of it. `obstore` and `awscrt` take part if they are
installed (`pip install obstore awscrt`); fleetfit needs neither.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import harness
from benchmarks.harness import Bar, Numbers, Quiet, Row, median_with_interval

_BYTES = 256 << 20
#: How large the channel is whose first bytes are waited for.
_LARGE = 2 << 30
_CHUNK = 1 << 20
_RATE = "MB/s"
_BAR = Bar(limit=0.9, at_least=True)
_FIRST_BAR = Bar(limit=1.0)


class Source:
    """A server with a bucket of two objects, and the ways to read the first.

    Args:
        folder: For everything.
    """

    def __init__(self, folder: Path) -> None:
        from estimators.service.s3.server import S3Server

        self.folder = folder
        bucket = folder / "served" / "bench"
        (bucket / "one").mkdir(parents=True)
        (bucket / "large").mkdir()
        block = os.urandom(_CHUNK)
        for path, size in ((bucket / "one" / "object", _BYTES), (bucket / "large" / "object", _LARGE)):
            with open(path, "wb") as file:
                for _ in range(size // _CHUNK):
                    file.write(block)
        os.environ["FLEETFIT_CACHE"] = str(folder / "cache")
        self.server = S3Server(folder / "served")
        os.environ.update(self.server.environment)
        from container.agent.s3 import listing

        for prefix in ("one", "large"):  # the server reads each file once for its ETag, which real S3 has
            listing.listing(f"s3://bench/{prefix}/")
        self.item = listing.describe("s3://bench/one/object")

    def close(self) -> None:
        """End the server."""
        self.server.stop()

    def ways(self) -> dict[str, Callable[[], Numbers]]:
        """Those that can be tried here."""
        found: dict[str, Callable[[], Numbers]] = {"boto3": self.boto3, "fleetfit": self.fleetfit, "FIFO": self.fifo}
        if importlib.util.find_spec("obstore") is not None:
            found["obstore"] = self.obstore
        if importlib.util.find_spec("awscrt") is not None:
            found["s3transfer CRT"] = self.crt
        return found

    def boto3(self) -> Numbers:
        """`get_object`, one connection."""
        import boto3

        client = boto3.session.Session().client("s3")

        def read() -> int:
            body = client.get_object(Bucket="bench", Key="one/object")["Body"]
            return sum(len(chunk) for chunk in body.iter_chunks(_CHUNK))

        return _timed(read)

    def fleetfit(self) -> Numbers:
        """Our stream."""
        from container.agent import sources

        buffer = bytearray(_CHUNK)

        def read() -> int:
            total = 0
            with sources.open(self.item) as stream:
                while count := stream.readinto(buffer):
                    total += count
            return total

        return _timed(read)

    def obstore(self) -> Numbers:
        """The Rust object_store crate."""
        import obstore
        from obstore.store import S3Store

        store = S3Store(
            "bench",
            endpoint=self.server.endpoint,
            access_key_id=self.server.key,
            secret_access_key=self.server.secret,
            region="us-east-1",
            client_options={"allow_http": True},
        )
        return _timed(lambda: sum(len(chunk) for chunk in obstore.get(store, "one/object").stream(_CHUNK)))

    def crt(self) -> Numbers:
        """AWS's C client, through s3transfer, into a file that forgets."""
        import botocore.session
        from s3transfer import crt

        session = botocore.session.get_session()
        wrapper = crt.BotocoreCRTCredentialsWrapper(session.get_credentials())
        client = crt.create_s3_crt_client(
            "us-east-1", crt_credentials_provider=wrapper.to_crt_credentials_provider(), use_ssl=False
        )
        options = {"region_name": "us-east-1", "endpoint_url": self.server.endpoint}
        sink = _Sink()

        def read() -> int:
            with crt.CRTTransferManager(client, crt.BotocoreCRTRequestSerializer(session, options)) as manager:
                manager.download("bench", "one/object", sink).result()
            return sink.count

        return _timed(read)

    def fifo(self) -> Numbers:
        """The host agent from S3 into a FIFO, read as fast as it comes; with the agent's peak of memory."""
        with _Agent(self.folder / "fifo", "s3://bench/one/") as agent:
            numbers = _timed(lambda: agent.read(_BYTES))
            return {**numbers, "memory_mb": agent.memory_mb()}

    def first(self) -> Numbers:
        """Seconds to the first bytes of the large channel, from the reader's start."""
        with _Agent(self.folder / "first", "s3://bench/large/") as agent:
            began = time.monotonic()
            agent.read(1)
            return {"s": time.monotonic() - began, "memory_mb": agent.memory_mb()}

    def file(self) -> Numbers:
        """The same in File mode with an empty cache: everything is downloaded first."""
        from container.agent import channels
        from container.contract.channels import HostChannel

        shutil.rmtree(self.folder / "cache" / "data", ignore_errors=True)
        base = self.folder / "file"
        began = time.monotonic()
        channels.prepare([base], [HostChannel(name="train", uri="s3://bench/large/")], tell=lambda line: None)
        with open(base / "input" / "data" / "train" / "object", "rb") as content:
            content.read(1)
        seconds = time.monotonic() - began
        shutil.rmtree(base)
        return {"s": seconds}


class _Sink:
    """A file object that counts."""

    def __init__(self) -> None:
        self.count = 0

    def write(self, data: Any) -> int:
        self.count += len(data)
        return len(data)

    def seekable(self) -> bool:
        return False


class _Agent:
    """The host agent of one channel in Pipe mode."""

    def __init__(self, base: Path, uri: str) -> None:
        self._base = base
        shutil.rmtree(base, ignore_errors=True)
        base.mkdir()
        channels = base / "channels.json"
        channels.write_text(json.dumps({"train": {"uri": uri, "mode": "Pipe"}}))
        program = harness.HERE.parent / "container" / "__main__.py"
        options = ["--base-dir", base, "--channels", channels, "--host", "algo-1"]
        self._process = subprocess.Popen([sys.executable, "-I", program, "agent", "pipe", *options])
        self._fifo = base / "input" / "data" / "train_0"
        until = time.monotonic() + 60
        while not self._fifo.exists():
            if time.monotonic() > until or self._process.poll() is not None:
                raise RuntimeError("the host agent made no FIFO")
            time.sleep(0.005)

    def read(self, size: int) -> int:
        """Read so many bytes from the FIFO."""
        total = 0
        with open(self._fifo, "rb", buffering=0) as fifo:
            while total < size and (chunk := fifo.read(min(_CHUNK, size - total))):
                total += len(chunk)
        return total

    def memory_mb(self) -> float:
        """The agent's peak of resident memory so far."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(peak.split()[1]) / 1000

    def __enter__(self) -> _Agent:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait()


def _timed(read: Callable[[], int]) -> Numbers:
    began, used = time.monotonic(), time.process_time()
    count = read()
    seconds, used = time.monotonic() - began, time.process_time() - used
    if count != _BYTES:
        raise RuntimeError(f"{count} bytes were read, and there are {_BYTES}")
    return {_RATE: count / 1e6 / seconds, "processor_s": used}


def run(options: argparse.Namespace) -> None:
    """Measure and record."""
    rounds = options.alternations or 10
    quiet = Quiet(options.patience)
    with tempfile.TemporaryDirectory(prefix="fleetfit-bench-") as folder:
        source = Source(Path(folder))
        try:
            values = harness.alternate(rounds, source.ways(), quiet)
            starts = harness.alternate(max(rounds // 3, 1), {"Pipe": source.first, "File": source.file}, quiet)
        finally:
            source.close()
    rates = {way: [numbers[_RATE] for numbers in found] for way, found in values.items()}
    clients = {way: found for way, found in rates.items() if way not in ("fleetfit", "FIFO")}
    best = max(clients, key=lambda way: statistics.median(clients[way]))
    beside = {f"{way}, {_RATE}": statistics.median(found) for way, found in rates.items()}
    rows = [
        Row(
            what=f"{_RATE} of one object, {name} ÷ {best}, the best client",
            estimate=median_with_interval(
                [ours / theirs for ours, theirs in zip(rates[way], rates[best], strict=True)]
            ),
            unit="",
            bar=_BAR,
            beside=beside,
        )
        for way, name in (("fleetfit", "our stream"), ("FIFO", "S3 to the FIFO"))
    ]
    memory = max(numbers["memory_mb"] for numbers in (*values["FIFO"], *starts["Pipe"]))
    rows.append(
        Row(
            what=f"the first bytes of {_LARGE >> 30} GiB in Pipe mode",
            estimate=median_with_interval([numbers["s"] for numbers in starts["Pipe"]]),
            unit="s",
            bar=_FIRST_BAR,
            beside={
                "File mode, s": statistics.median([numbers["s"] for numbers in starts["File"]]),
                "the agent's memory at most, MB": memory,
            },
        )
    )
    harness.record("s3", rows, {"rates": values, "starts": starts}, quiet, dry=options.dry)
