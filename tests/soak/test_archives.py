"""Hundreds of hostile archives: nothing gets outside the folder that they are unpacked into, and none hangs."""

from __future__ import annotations

import gzip
import os
import random
import stat
import struct
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from container.system.archive import ArchiveError, extract
from container.system.removing import remove_tree
from estimators.job.errors import ConfigurationError
from estimators.service import source

# The timeout is for what hangs.
pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

#: What extract() itself may unpack here, in bytes.
BOUND = 1 << 20

Entry = bytes


def block(name: str, content: bytes = b"", *, size: int | None = None, **fields: object) -> Entry:
    """An entry, packed; ``size`` is what its header says, if that is not so."""
    info = tarfile.TarInfo(name)
    info.size = len(content) if size is None else size
    for field, value in fields.items():
        setattr(info, field, value)
    encoding = "utf-8"
    header = info.tobuf(fields.pop("format", tarfile.GNU_FORMAT), encoding, "surrogatepass")  # type: ignore[arg-type]
    return header + content + b"\0" * (-len(content) % 512)


def extended(records: dict[str, bytes]) -> Entry:
    """A pax header for the entry behind it, with whatever values."""
    content = b""
    for name, value in records.items():
        line = b" " + name.encode() + b"=" + value + b"\n"
        length = len(line)
        while length != len(line) + len(str(length)):
            length = len(line) + len(str(length))
        content += str(length).encode() + line
    return block("pax", content, type=tarfile.XHDTYPE)


def link(name: str, target: str, **fields: object) -> Entry:
    return block(name, type=tarfile.SYMTYPE, linkname=target, **fields)


def hard(name: str, target: str) -> Entry:
    return block(name, type=tarfile.LNKTYPE, linkname=target)


def up(choice: random.Random) -> str:
    """A path that leads out, if it is believed."""
    steps = "/".join(choice.choice(["..", "..", "../.", "a/../.."]) for _ in range(choice.randint(1, 6)))
    return f"{choice.choice(['', './', 'd/../', 'd//'])}{steps}/{choice.choice(['victim', 'outside/victim', 'new'])}"


class Hostile:
    """Archives of all kinds.

    Args:
        choice: What is random.
        outside: A folder that no archive may change.
    """

    def __init__(self, choice: random.Random, outside: Path) -> None:
        self._choice = choice
        self._outside = str(outside)
        self.kinds = sorted(name for name in dir(self) if name.startswith("make_"))

    def archive(self, kind: str) -> bytes:
        """One with entries of a kind among harmless ones and, now and then, others."""
        entries = [block("train.py", b"x = 1\n"), block("d/e/f.txt", b"f" * self._choice.randint(0, 2000))]
        entries += [link("good", "d/e/f.txt"), hard("twin", "train.py"), block("d", type=tarfile.DIRTYPE, mode=0o755)]
        entries += getattr(self, kind)()
        if self._choice.random() < 0.3:
            entries += getattr(self, self._choice.choice(self.kinds))()
        if self._choice.random() < 0.3:
            head, *rest = entries  # what hangs together stays in order more often than not
            self._choice.shuffle(rest)
            entries = [head, *rest]
        content = b"".join(entries) + b"\0" * 1024
        return gzip.compress(content, 1) if self._choice.random() < 0.7 else content

    def make_traversal(self) -> list[Entry]:
        return [block(up(self._choice), b"evil")]

    def make_traversal_folder(self) -> list[Entry]:
        return [block(up(self._choice), type=tarfile.DIRTYPE)]

    def make_absolute(self) -> list[Entry]:
        slashes = "/" * self._choice.randint(0, 2)
        return [block(f"{slashes}{self._outside}/{self._choice.choice(['victim', 'new', '../new'])}", b"evil")]

    def make_absolute_by_pax(self) -> list[Entry]:
        return [extended({"path": f"{self._outside}/victim".encode()}), block("fine", b"evil")]

    def make_link_out(self) -> list[Entry]:
        target = self._choice.choice([self._outside, f"{self._outside}/victim", "/", "..", "../..", up(self._choice)])
        return [link("l", target)]

    def make_link_out_by_pax(self) -> list[Entry]:
        return [extended({"linkpath": self._outside.encode()}), link("l", "train.py")]

    def make_write_through_link(self) -> list[Entry]:
        return [link("l", self._choice.choice([self._outside, "../outside"])), block("l/victim", b"evil")]

    def make_write_onto_link(self) -> list[Entry]:
        return [link("l", f"{self._outside}/victim"), block("l", b"evil")]

    def make_link_below_a_link(self) -> list[Entry]:
        return [link("l", self._outside), link("l/new", "x")]

    def make_links_that_leave_together(self) -> list[Entry]:
        return [
            link("d/e/c", self._choice.choice(["../..", ".", ".."])),
            link("o", f"d/e/c/{up(self._choice)}"),
            link("p", "o/../.."),
        ]

    def make_link_out_and_back(self) -> list[Entry]:
        return [link("l", f"../{self._choice.choice(['code', 'source', 'x'])}/train.py"), link("m", "d/../../l/../..")]

    def make_circle(self) -> list[Entry]:
        return [link("l", "m"), link("m", self._choice.choice(["l", "l/..", "./m/../l"])), block("l/x", b"evil")]

    def make_chain(self) -> list[Entry]:
        return [link("l0", ".."), *(link(f"l{n}", f"l{n - 1}/..") for n in range(1, self._choice.randint(2, 60)))]

    def make_hard_link_out(self) -> list[Entry]:
        return [hard("h", self._choice.choice([f"{self._outside}/victim", up(self._choice), "/etc/passwd"]))]

    def make_hard_link_through_link(self) -> list[Entry]:
        return [link("l", self._outside), hard("h", "l/victim"), hard("i", "l"), block("i", b"evil")]

    def make_hard_link_overwritten(self) -> list[Entry]:
        return [hard("h", f"{self._outside}/victim"), block("h", b"evil")]

    def make_device(self) -> list[Entry]:
        kind = self._choice.choice([tarfile.CHRTYPE, tarfile.BLKTYPE])
        return [block("device", type=kind, devmajor=self._choice.randint(0, 8), devminor=self._choice.randint(0, 8))]

    def make_fifo(self) -> list[Entry]:
        return [block("fifo", type=tarfile.FIFOTYPE), block("fifo", b"x")]

    def make_unknown_type(self) -> list[Entry]:
        return [block("odd", b"x", type=bytes([self._choice.randrange(256)]))]

    def make_deep(self) -> list[Entry]:
        return [block("d/" * self._choice.choice([127, 129, 500, 3000]) + "x", b"x")]

    def make_long_name(self) -> list[Entry]:
        return [block(self._choice.choice("aé/") * self._choice.choice([254, 256, 5000]), b"x")]

    def make_duplicates(self) -> list[Entry]:
        kinds = [block("same", b"1"), link("same", "d"), block("same", type=tarfile.DIRTYPE), block("same/x", b"x")]
        kinds += [hard("same", "train.py"), link("same", self._outside)]
        return self._choice.choices(kinds, k=self._choice.randint(2, 8))

    def make_odd_names(self) -> list[Entry]:
        names = ["\ud800", "\udcff", "é", "e\u0301", "a\u202eb", "\x1b[2J", "a\nb", " ", "...", "-rf", "‥/‥/victim"]
        names += ["．．/victim", "..\\victim", "C:\\x", "~/x", "$HOME", ".fleetfit-incomplete"]
        return [block(name, b"x") for name in self._choice.sample(names, 3)]

    def make_zero_in_name(self) -> list[Entry]:
        return [extended({"path": b"a\0/../../victim", "linkpath": b"\0"}), link("a", "b")]

    def make_bytes_in_pax(self) -> list[Entry]:
        value = self._choice.randbytes(20).replace(b"\n", b"x")
        return [extended({"hdrcharset": b"BINARY", "path": value}), block("a", b"x")]

    def make_numbers_in_pax(self) -> list[Entry]:
        odd = [b"-1", b"nan", b"inf", b"1e400", b"9" * 30, b"", b"x", b"-9223372036854775808"]
        names = ["size", "mtime", "uid", "GNU.sparse.size", "GNU.sparse.realsize", "GNU.sparse.map"]
        chosen = self._choice.sample(names, 2)
        return [extended({name: self._choice.choice(odd) for name in chosen}), block("a", b"x")]

    def make_sparse(self) -> list[Entry]:
        size = b"%d" % (1 << self._choice.choice([10, 31, 40, 62]))
        records = {"GNU.sparse.major": b"1", "GNU.sparse.minor": b"0", "GNU.sparse.name": b"../victim"}
        content = self._choice.choice([b"1\n0\n1\n", b"9" * 400, b"1\n-512\n9\n"]).ljust(512, b"\0")
        return [extended({**records, "GNU.sparse.realsize": size}), block("a", content)]

    def make_sparse_of_old(self) -> list[Entry]:
        return [extended({"GNU.sparse.map": b"0,1,-5,3", "GNU.sparse.size": b"1099511627776"}), block("a", b"x" * 512)]

    def make_huge(self) -> list[Entry]:
        return [block("huge", b"x", size=1 << self._choice.choice([21, 31, 40, 60]))]

    def make_negative(self) -> list[Entry]:
        return [checked(block("n", b"x"), 124, b"\xff" * 4 + struct.pack(">q", -512 * self._choice.randint(1, 9)))]

    def make_bomb(self) -> list[Entry]:
        return [block(f"bomb{n}", bytes(BOUND // 4)) for n in range(5)]

    def make_bomb_in_header(self) -> list[Entry]:
        kind = self._choice.choice([tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
        return [block("long", bytes(3 << 20), type=kind)]

    def make_headers_of_headers(self) -> list[Entry]:
        kind = self._choice.choice([tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
        return [block("h", type=kind)] * self._choice.choice([10, 900, 3000])

    def make_empty_record_in_pax(self) -> list[Entry]:
        return [block("pax", b"0 path=x\n", type=tarfile.XHDTYPE), block("a", b"x")]

    def make_bits(self) -> list[Entry]:
        return [block("suid", b"x", mode=self._choice.choice([0o7777, 0o4755, 0]), uid=0, mtime=2**33)]

    def make_damage(self) -> list[Entry]:
        whole = block("a", b"x" * 3000)
        return [whole[: self._choice.randrange(len(whole))], self._choice.randbytes(600)]

    def make_flips(self) -> list[Entry]:
        header = bytearray(block("a", b"x" * 100))
        for _ in range(self._choice.randint(1, 20)):
            header[self._choice.choice([*range(100), *range(108, 148), 156, *range(257, 512)])] = (
                self._choice.randrange(256)
            )
        return [checked(bytes(header), 0, b"")]

    def make_many(self) -> list[Entry]:
        return [block(f"m{n}") for n in range(300)]


def checked(entry: Entry, at: int, value: bytes) -> Entry:
    """The entry with other bytes in its header, whose checksum is right."""
    header = bytearray(entry[:512])
    header[at : at + len(value)] = value
    header[148:156] = b" " * 8
    header[148:156] = b"%06o\0 " % sum(header)
    return bytes(header) + entry[512:]


def everything(folder: Path, *but: Path) -> dict[str, tuple[object, ...]]:
    """What is in a folder, links not followed."""
    found: dict[str, tuple[object, ...]] = {}
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if Path(place, name) not in but]
        for name in [*folders, *files]:
            path = os.path.join(place, name)
            status = os.lstat(path)
            content = Path(path).read_bytes() if stat.S_ISREG(status.st_mode) else b""
            times = () if stat.S_ISDIR(status.st_mode) else (status.st_mtime_ns, status.st_nlink)
            found[path] = (status.st_mode, status.st_ino, content, *times)
    return found


def faults(target: Path) -> list[str]:
    """What an unpacked folder must not hold."""
    found = []
    root = os.path.realpath(target)
    for place, folders, files in os.walk(target):
        for name in [*folders, *files]:
            path = os.path.join(place, name)
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                leads = os.path.realpath(path)
                if leads != root and not leads.startswith(root + "/"):
                    found.append(f"{path} leads to {leads}")
            elif not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
                found.append(f"{path} is neither file nor folder")
            elif mode & 0o7000:
                found.append(f"{path} has mode {mode:o}")
    return found


@pytest.mark.parametrize("seed", [*range(10), "new"], indirect=True)
def test_nothing_gets_outside(
    count: Callable[[int], int], record: Callable[..., None], tmp_path: Path, seed: int
) -> None:
    """Unpacked by itself, and as the endpoint does it with the code of a job."""
    choice = random.Random(seed)
    arena = tmp_path / "arena"
    outside, inner = arena / "outside", arena / "inner"
    outside.mkdir(parents=True)
    inner.mkdir()
    for place in (outside, inner, arena):
        (place / "victim").write_bytes(b"precious")
    hostile = Hostile(choice, outside)
    kinds = [kind for _ in range(count(6)) for kind in hostile.kinds]
    packed = inner / "sourcedir.tar.gz"
    target = inner / "source"
    ends: Counter[str] = Counter()
    problems: list[str] = []
    spec = SimpleNamespace(submit_directory="s3://bucket/sourcedir.tar.gz", program="train.py")
    storage = SimpleNamespace(path=lambda bucket, key: packed)
    ways: dict[str, Callable[[], None]] = {
        "extract": lambda: extract(packed, target, max_bytes=BOUND),
        "endpoint": lambda: source.bring_source(spec, SimpleNamespace(source_dir=target), storage),  # type: ignore[arg-type]
    }
    for number, kind in enumerate(kinds):
        packed.write_bytes(hostile.archive(kind))
        for way, unpack in ways.items():
            what = f"archive {number} of seed {seed}, {kind}, {way}"
            before = everything(arena, target)
            try:
                unpack()
                ends["unpacked"] += 1
            except (ArchiveError, ConfigurationError) as error:
                ends["refused"] += 1
                if not str(error).strip():
                    problems.append(f"{what}: refused without a reason")
            except OSError as error:  # as of a name that is too long for the file system
                ends["refused by the system"] += 1
                if way == "endpoint":
                    problems.append(f"{what}: {error!r}")
            except Exception as error:  # noqa: BLE001 - put on record
                problems.append(f"{what}: {error!r}"[:400])
            if everything(arena, target) != before:
                problems.append(f"{what}: something outside has changed")
            if target.exists():
                problems += [f"{what}: {fault}" for fault in faults(target)]
                remove_tree(target)
    record(
        "archives",
        seed=seed,
        archives=len(kinds),
        kinds=len(hostile.kinds),
        ways=list(ways),
        ends=dict(ends),
        problems=problems,
    )
    assert problems == []
    assert ends["unpacked"] and ends["refused"]
