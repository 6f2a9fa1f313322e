"""The byte stream of one epoch's FIFO."""

from __future__ import annotations

import dataclasses
import functools
import os
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from container import formats
from container.agent import sources
from container.agent.pipes import dealing
from container.agent.pipes.sharing import SharedObjects
from container.agent.pipes.writing import Pipe
from container.agent.sources import DataObject
from container.contract.channels import Compression, DataDistribution, DataType, HostChannel, RecordWrapping
from container.contract.errors import AgentError
from container.contract.pipes import Note
from container.contract.sharding import deal, shuffled
from container.formats import RecordFormat, recordio
from container.formats.gzip import Gunzip, GzipError
from container.formats.textline import END

if TYPE_CHECKING:
    from container.agent.sources.manifests import AugmentedEntry

#: Data is moved in pieces of this size where it cannot be passed on by the kernel.
CHUNK = 1 << 20
#: The format of an object shows in its first bytes.
_HEAD = 4096
#: How many of them are read ahead of the reader.
_AHEAD = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class ChannelContents:
    """What a host reads of a channel.

    Attributes:
        channel: The channel.
        objects: All of its objects, in their order; the last ones may still be on their way.
        hosts: How many hosts there are.
        host: Which one this is, from 0.
    """

    channel: HostChannel
    objects: Iterable[DataObject]
    hosts: int = 1
    host: int = 0

    @classmethod
    def of(cls, channel: HostChannel, *, hosts: int, host: int, failed: Callable[[Exception], None]) -> ChannelContents:
        """List a channel; where all objects are read in the order of their keys, no further than to the first ones.

        Args:
            channel: The channel.
            hosts: How many hosts there are.
            host: Which one this is, from 0.
            failed: Takes the error that ended the list later than here.

        Raises:
            AgentError: there is nothing, or it cannot be read.
        """
        in_order = channel.distribution is DataDistribution.REPLICATED and channel.shuffle_seed is None
        objects = sources.in_order(channel, failed) if in_order else sources.objects(channel)
        return cls(channel=channel, objects=objects, hosts=hosts, host=host)

    def share(self, epoch: int, host: int | None = None) -> Iterable[DataObject]:
        """Return a host's objects in an epoch, in the order in which they are read.

        All objects are shuffled first, and dealt then: as on SageMaker, a host gets others in each epoch.
        """
        if self.channel.distribution is DataDistribution.REPLICATED and self.channel.shuffle_seed is None:
            return self.objects
        items = shuffled(tuple(self.objects), self.channel.shuffle_seed, epoch)
        if self.channel.distribution is DataDistribution.SHARDED:
            return deal(items, self.hosts, self.host if host is None else host)
        return items


def write_stream(
    pipe: Pipe,
    contents: ChannelContents,
    epoch: int,
    *,
    local_rank: int,
    ranks: int,
    sharing: SharedObjects | None = None,
) -> None:
    """Write an epoch of a channel for one reader.

    Args:
        pipe: The FIFO.
        contents: The channel.
        epoch: The epoch, from 0.
        local_rank: Which reader of this host it is.
        ranks: How many readers the host has. A channel that is ShardedByS3Key is dealt to them record by record.
        sharing: What they share, so that an object is read once for all of them.

    Raises:
        ReaderGone: the reader wants no more.
        AgentError: an object cannot be read.
        RecordError: an object that has to be divided into records is damaged.
    """
    channel = contents.channel
    if channel.data_type is DataType.AUGMENTED_MANIFEST:
        _write_augmented(pipe, channel, epoch)
        return
    items = contents.share(epoch)
    dealt = ranks > 1 and channel.distribution is DataDistribution.SHARDED
    if dealt and channel.record_wrapping is RecordWrapping.RECORDIO:
        items, dealt = tuple(items)[local_rank::ranks], False  # each object is a record
    dealer = dealing.Dealer(channel.name, local_rank, ranks) if dealt else None
    lacks_end = False
    for number, item in enumerate(items):
        if lacks_end:
            pipe.write(END)
        pieces: Iterator[bytes] = _pieces(channel, item)
        if sharing is not None:
            pieces = sharing.pieces((epoch, number), functools.partial(_pieces, channel, item))
        if channel.record_wrapping is RecordWrapping.RECORDIO:
            pipe.note(Note(at=pipe.written, uri=item.uri, plain=False))
            _wrap(pipe, channel, item)
        elif dealer is not None:
            dealer.write(pipe, item, ReadAhead(pieces))
        else:
            packed = channel.compression is Compression.GZIP
            pipe.note(Note(at=pipe.written, uri=item.uri, plain=not packed))
            lacks_end = _pass_on(pipe, channel, item, pieces)


def _pass_on(pipe: Pipe, channel: HostChannel, item: DataObject, pieces: Iterator[bytes] | None = None) -> bool:
    """Write an object's bytes as they are, or unpacked; ``pieces`` are what is read where they have to be.

    Returns:
        Whether it is text whose last line has no end: the next object's first line would be joined to it.
    """
    if channel.compression is Compression.NONE:
        with sources.open(item) as stream:
            local: Any = stream if hasattr(stream, "fileno") else None
            if local is not None:
                head, last = (os.pread(local.fileno(), *part) for part in ((_HEAD, 0), (1, max(item.size - 1, 0))))
                if pipe.splice(local, item.size):
                    local.verify()
                    return _lacks_end(head, last)
    head = last = b""
    for data in ReadAhead(pieces if pieces is not None else _pieces(channel, item)):
        pipe.write(data)
        head, last = head or data[:_HEAD], data[-1:]
    return _lacks_end(head, last)


def _lacks_end(head: bytes, last: bytes) -> bool:
    return last not in (b"", END) and formats.recognise(head) is RecordFormat.TEXT_LINE


def _wrap(pipe: Pipe, channel: HostChannel, item: DataObject) -> None:
    """Write an object as one RecordIO record."""
    if channel.compression is Compression.NONE and item.size <= recordio.PART_LIMIT:
        pipe.write(recordio.header(item.size))
        _pass_on(pipe, channel, item)
        pipe.write(recordio.padding(item.size))
        return
    # How much there is shows at its end only, or is more than a part can hold: a record of several parts.
    before: bytes | None = None
    flag = 1
    for data in _even(ReadAhead(_pieces(channel, item))):
        if before is not None:
            pipe.write(recordio.header(len(before), flag) + before)
            flag = 2
        before = data
    last = before or b""
    pipe.write(recordio.header(len(last), 0 if flag == 1 else 3) + last + recordio.padding(len(last)))


def _even(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join pieces so that all but the last are multiples of four bytes: only the last is padded."""
    rest = b""
    for piece in pieces:
        data = rest + piece
        whole = len(data) - len(data) % 4
        rest = data[whole:]
        if whole:
            yield data[:whole]
    if rest:
        yield rest


def _pieces(channel: HostChannel, item: DataObject) -> Generator[bytes, None, None]:
    """Yield an object's bytes, unpacked where the channel says so."""
    with sources.open(item) as stream:
        if channel.compression is Compression.NONE:
            while data := stream.read(CHUNK):
                yield data
            return
        unpacked = Gunzip(stream)
        try:
            while data := unpacked.read(CHUNK):
                yield data
        except GzipError as error:
            raise AgentError(
                f"channel {channel.name!r}: {item.uri!r}: after {unpacked.packed:,} bytes: {error}. The channel has "
                "compression='Gzip': every object must be a gzip file."
            ) from None


def _write_augmented(pipe: Pipe, channel: HostChannel, epoch: int) -> None:
    """Write the attributes of an augmented manifest's lines, one after another."""
    entries: Iterable[AugmentedEntry] = sources.entries(channel)
    if channel.shuffle_seed is not None:
        entries = shuffled(list(entries), channel.shuffle_seed, epoch)
    wrapped = channel.record_wrapping is RecordWrapping.RECORDIO
    for entry in entries:
        for attribute in entry.attributes:
            if attribute.uri is not None:
                item = sources.describe(attribute.uri)
                pipe.note(Note(at=pipe.written, uri=item.uri, plain=not wrapped))
                (_wrap if wrapped else _pass_on)(pipe, channel, item)
            else:
                data = attribute.value
                pipe.write(recordio.encode(data) if wrapped else data)


class ReadAhead:
    """Read a bounded number of pieces ahead, in a thread.

    Args:
        pieces: The pieces, read in that thread.
    """

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._queue: queue.Queue[bytes | Exception | None] = queue.Queue(_AHEAD)
        self._left = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        threading.Thread(target=self._read, daemon=True).start()
        try:
            while (piece := self._queue.get()) is not None:
                if isinstance(piece, Exception):
                    raise piece
                yield piece
        finally:
            self._left.set()

    def _read(self) -> None:
        try:
            for piece in self._pieces:
                if not self._put(piece):
                    return
            self._put(None)
        except Exception as error:  # noqa: BLE001 - raised where the pieces are taken
            self._put(error)
        finally:
            if isinstance(self._pieces, Generator):
                self._pieces.close()

    def _put(self, piece: bytes | Exception | None) -> bool:
        """Wait for room; False when nobody takes pieces any more."""
        while not self._left.is_set():
            try:
                self._queue.put(piece, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False
