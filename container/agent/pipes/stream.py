"""Write the byte stream of one epoch's FIFO."""

from __future__ import annotations

import functools
import os
import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import TYPE_CHECKING

from container import formats
from container.agent import sources
from container.agent.pipes import dealing
from container.agent.pipes.sharing import SharedObjects
from container.agent.pipes.writing import Pipe
from container.agent.sources import DataObject
from container.agent.sources.local import LocalStream
from container.contract.channels import Compression, DataDistribution, DataType, HostChannel, RecordWrapping
from container.contract.errors import AgentError
from container.contract.frozen import dataclass
from container.contract.pipes import Note
from container.contract.sharding import deal, shuffled
from container.formats import RecordFormat, recordio
from container.formats.gzip import Gunzip, GzipError
from container.formats.textline import END

if TYPE_CHECKING:
    from container.agent.sources.manifests import AugmentedEntry

#: Size of the pieces in which data is moved if the kernel cannot splice it.
CHUNK = 1 << 20
#: Number of bytes at the beginning of an object that show its format.
_HEAD = 4096
#: Maximum number of pieces that are read ahead.
_AHEAD = 16


@dataclass(frozen=True, kw_only=True)
class ChannelContents:
    """A channel's objects, as one host reads them.

    Attributes:
        channel: The channel.
        objects: All of the channel's objects, in order. While the channel is still being listed, an iteration over the
            objects waits for the rest of the list.
        hosts: Number of hosts.
        host: Number of this host, from 0.
    """

    channel: HostChannel
    objects: Iterable[DataObject]
    hosts: int = 1
    host: int = 0

    @classmethod
    def of(cls, channel: HostChannel, *, hosts: int, host: int, failed: Callable[[Exception], None]) -> ChannelContents:
        """List a channel's objects, and return the channel's contents for one host.

        If every host reads all objects in their original order, this method lists only the first page. A thread lists
        the rest.

        Args:
            channel: The channel.
            hosts: Number of hosts.
            host: Number of this host, from 0.
            failed: Called with the error if the thread cannot list the rest.

        Raises:
            AgentError: the channel has no data, or cannot be read.
        """
        in_order = channel.distribution is DataDistribution.REPLICATED and channel.shuffle_seed is None
        objects = sources.in_order(channel, failed) if in_order else sources.objects(channel)
        return cls(channel=channel, objects=objects, hosts=hosts, host=host)

    def share(self, epoch: int, host: int | None = None) -> Iterable[DataObject]:
        """Return the objects that a host reads in an epoch, in reading order.

        The objects are first shuffled and then distributed. Therefore, as on SageMaker, a host gets different objects
        in each epoch.

        Args:
            epoch: The epoch, from 0.
            host: Number of the host, from 0. None for this host.
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
    """Write an epoch of a channel into the FIFO of one reader.

    Args:
        pipe: The FIFO.
        contents: The channel's objects.
        epoch: The epoch, from 0.
        local_rank: The reader's rank on this host.
        ranks: Number of readers on the host. The records of a ShardedByS3Key channel are assigned to the readers in
            turn.
        sharing: The objects that the readers share, so that an object is read only once for all readers. None if there
            is only one reader.

    Raises:
        ReaderGone: the reader has closed the FIFO.
        AgentError: an object cannot be read.
        DamagedRecordError: an object that must be divided into records is damaged.
    """
    channel = contents.channel
    if channel.data_type is DataType.AUGMENTED_MANIFEST:
        _write_augmented(pipe, channel, epoch)
        return
    items = contents.share(epoch)
    dealt = ranks > 1 and channel.distribution is DataDistribution.SHARDED
    if dealt and channel.record_wrapping is RecordWrapping.RECORDIO:
        items, dealt = tuple(items)[local_rank::ranks], False  # each object is a record
        sharing = None  # no two readers have the same object
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
            _wrap(pipe, channel, item, pieces)
        elif dealer is not None:
            dealer.write(pipe, item, ReadAhead(pieces))
        else:
            packed = channel.compression is Compression.GZIP
            pipe.note(Note(at=pipe.written, uri=item.uri, plain=not packed))
            lacks_end = _pass_on(pipe, channel, item, pieces)


def _pass_on(pipe: Pipe, channel: HostChannel, item: DataObject, pieces: Iterator[bytes]) -> bool:
    """Write an object's bytes, unchanged or decompressed.

    Args:
        pipe: The FIFO.
        channel: The channel.
        item: The object.
        pieces: Yields the object's bytes. This iterator is used only if the kernel cannot splice the object's file into
            the FIFO.

    Returns:
        Whether the object is text and its last line has no line break. In this case the caller must write a line break
        before the next object.
    """
    if channel.compression is Compression.NONE:
        with sources.open(item) as stream:
            if isinstance(stream, LocalStream):
                head, last = (os.pread(stream.fileno(), *part) for part in ((_HEAD, 0), (1, max(item.size - 1, 0))))
                if pipe.splice(stream, item.size):
                    stream.verify()
                    return _lacks_end(head, last)
    head = last = b""
    for data in ReadAhead(pieces):
        pipe.write(data)
        head, last = head or data[:_HEAD], data[-1:]
    return _lacks_end(head, last)


def _lacks_end(head: bytes, last: bytes) -> bool:
    return last not in (b"", END) and formats.recognise(head) is RecordFormat.TEXT_LINE


def _wrap(pipe: Pipe, channel: HostChannel, item: DataObject, pieces: Iterator[bytes]) -> None:
    """Write an object as one RecordIO record.

    Args:
        pipe: The FIFO.
        channel: The channel.
        item: The object.
        pieces: Yields the object's bytes.
    """
    if channel.compression is Compression.NONE and item.size <= recordio.PART_LIMIT:
        pipe.write(recordio.header(item.size))
        _pass_on(pipe, channel, item, pieces)
        pipe.write(recordio.padding(item.size))
        return
    # The size is unknown until the end, or exceeds the maximum of a part: write a record of several parts.
    before: bytes | None = None
    flag = 1
    for data in _even(ReadAhead(pieces)):
        if before is not None:
            pipe.write(recordio.header(len(before), flag) + before)
            flag = 2
        before = data
    last = before or b""
    pipe.write(recordio.header(len(last), 0 if flag == 1 else 3) + last + recordio.padding(len(last)))


def _even(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """Join blocks of bytes so that the size of each block, except the last, is a multiple of four bytes.

    Only the last block then needs padding.
    """
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
    """Yield an object's bytes block by block. If the channel is compressed, yield the decompressed bytes."""
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
    """Write, for each line of an augmented manifest, the attributes that the channel reads."""
    entries: Iterable[AugmentedEntry] = sources.entries(channel)
    if channel.shuffle_seed is not None:
        entries = shuffled(list(entries), channel.shuffle_seed, epoch)
    wrapped = channel.record_wrapping is RecordWrapping.RECORDIO
    for entry in entries:
        for attribute in entry.attributes:
            if attribute.uri is not None:
                item = sources.describe(attribute.uri)
                pipe.note(Note(at=pipe.written, uri=item.uri, plain=not wrapped))
                (_wrap if wrapped else _pass_on)(pipe, channel, item, _pieces(channel, item))
            else:
                data = attribute.value
                pipe.write(recordio.encode(data) if wrapped else data)


class ReadAhead:
    """An iterable over blocks of bytes. A thread reads a limited number of blocks ahead.

    Args:
        pieces: The iterator that yields the blocks. Only the thread uses this iterator.
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
        except Exception as error:  # noqa: BLE001 - raised in the thread that iterates over the pieces
            self._put(error)
        finally:
            if isinstance(self._pieces, Generator):
                self._pieces.close()

    def _put(self, piece: bytes | Exception | None) -> bool:
        """Wait until the queue has space for a block, and add the block. Return False if the consumer has stopped."""
        while not self._left.is_set():
            try:
                self._queue.put(piece, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False
