"""Gives a process that was forked while its interpreter started another command line, before the script is run.

The interpreter reads the script's name from its own configuration when it has imported ``site``. So a fork whose
configuration names another script goes on to run that one, as if it had been started with it: ``__main__``, traceback,
exit functions, exit code and ``sys.path[0]`` are the interpreter's work. Nothing of ours can be imported here.
"""

import ctypes
import mmap
import os
import struct
import sys

_PR_SET_MM = 35
_PR_SET_MM_MAP = 14
#: The size of what is looked through of the interpreter's configuration, in words; it has some sixty.
_WORDS = 64
_LOWEST, _HIGHEST = 1 << 16, 1 << 47
_WIDE = 4  # bytes of a wchar_t

_kept: list[mmap.mmap] = []  # memory that the kernel reads


class NoPlace(Exception):
    """This interpreter's configuration is not as it is known to be; the message says what was looked for."""


class Configuration:
    """Where the interpreter keeps the script's name: ``PyConfig.run_filename`` and ``PyConfig.argv``.

    It is looked for by what is there, as the structure differs from version to version.

    Raises:
        NoPlace: it is not found, or more than one place might be it.
    """

    def __init__(self) -> None:
        try:
            get = ctypes.pythonapi._Py_GetConfig
        except AttributeError:
            raise NoPlace("there is no _Py_GetConfig") from None
        get.restype = ctypes.c_void_p
        self._words = (ctypes.c_size_t * _WORDS).from_address(get())
        self._memory = os.open("/proc/self/mem", os.O_RDONLY | os.O_CLOEXEC)
        try:
            script, first = _absolute(sys.orig_argv[1], os.getcwd()), sys.orig_argv[1]
            files = [index for index, word in enumerate(self._words) if self._holds(word, script)]
            lists = [index for index in range(_WORDS - 1) if self._is_list(index, len(sys.orig_argv) - 1, first)]
        finally:
            os.close(self._memory)
        # A list of one word is laid out as another structure might be, and a relative name is in the list alone.
        if len(files) != 1 or len(lists) != 1:
            raise NoPlace(f"the script's name is at {len(files)} and {len(lists)} places")
        self._file, self._list = files[0], lists[0]

    def _read(self, address, size):  # type: ignore[no-untyped-def]
        if not _LOWEST <= address < _HIGHEST:
            return b""
        try:
            return os.pread(self._memory, size, address)
        except OSError:
            return b""

    def _holds(self, address, text):  # type: ignore[no-untyped-def]
        data = text.encode("utf-32-le", "surrogateescape") + bytes(_WIDE)
        return bool(self._read(address, len(data)) == data)

    def _is_list(self, index, length, first):  # type: ignore[no-untyped-def]
        if self._words[index] != length:
            return False
        return self._holds(int.from_bytes(self._read(self._words[index + 1], 8), "little"), first)

    def take(self, argv) -> None:  # type: ignore[no-untyped-def]
        """Have the interpreter run another script.

        Args:
            argv: The command, whose script is relative to the working directory, or absolute.
        """
        if argv == sys.orig_argv and self._holds_now(_absolute(argv[1], os.getcwd())):
            return
        decode = ctypes.pythonapi.Py_DecodeLocale
        decode.restype = ctypes.c_void_p  # allocated as the interpreter will free it
        self._words[self._file] = decode(os.fsencode(_absolute(argv[1], os.getcwd())), None)
        ctypes.c_size_t.from_address(self._words[self._list + 1]).value = decode(os.fsencode(argv[1]), None)
        sys.orig_argv[:] = argv
        sys.argv[:] = argv[1:]

    def _holds_now(self, script):  # type: ignore[no-untyped-def]
        return ctypes.wstring_at(self._words[self._file]) == script


def _absolute(script, folder):  # type: ignore[no-untyped-def]
    """As the interpreter makes it, which normalizes nothing else."""
    return script if os.path.isabs(script) else f"{folder}/{script}"


def show(argv, environment) -> None:  # type: ignore[no-untyped-def]
    """Have ``/proc/PID/cmdline`` and ``environ`` say what this process is now, where the kernel lets us."""
    words = b"".join(os.fsencode(word) + b"\0" for word in argv)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    memory = mmap.mmap(-1, len(words) + len(variables) or 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[: len(words) + len(variables)] = words + variables
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    middle = start + len(words)
    with open("/proc/self/stat", "rb") as file:
        stat = file.read()
    fields = stat[stat.rindex(b")") + 2 :].split()
    code, end_code, stack, data, end_data, start_brk = (int(fields[number]) for number in (23, 24, 25, 42, 43, 44))
    libc = ctypes.CDLL(None)
    libc.sbrk.restype = ctypes.c_void_p
    places = (code, end_code, data, end_data, start_brk, libc.sbrk(ctypes.c_ssize_t(0)), stack)
    # struct prctl_mm_map of <linux/prctl.h>: without a new auxiliary vector or executable.
    mapping = struct.pack("12QIi", *places, start, middle, middle, middle + len(variables), 0, 0, -1)
    last = ctypes.c_ulong(0)
    if libc.prctl(_PR_SET_MM, ctypes.c_ulong(_PR_SET_MM_MAP), mapping, ctypes.c_ulong(len(mapping)), last) == 0:
        _kept.append(memory)
