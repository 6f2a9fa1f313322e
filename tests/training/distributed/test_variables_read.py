"""Which variables compiled libraries read when frameworks are imported: an importer's ranks must not differ in them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from container.system.variables_read import is_read_at_load

#: Notes what is asked for by functions of the C library, of which Python code has no part.
NOTES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static char *look(const char *function, const char *name) {
    char *(*real)(const char *) = (char *(*)(const char *)) dlsym(RTLD_NEXT, function);
    int fd = atoi(real("NOTES_FD") ? real("NOTES_FD") : "-1");
    char line[256];
    size_t length = strnlen(name, sizeof line - 1);
    memcpy(line, name, length);
    line[length] = 10;
    if (write(fd, line, length + 1) < 0) {}
    return real(name);
}
char *getenv(const char *name) { return look("getenv", name); }
char *secure_getenv(const char *name) { return look("secure_getenv", name); }
"""

#: Those that do not matter: read by programs that a library finds, told apart by the launcher, or read for tests.
OTHERS = {"HOME", "PATH", "PSUTIL_DEBUG", "PSUTIL_TESTING", "OMPI_COMM_WORLD_LOCAL_SIZE", "__PYVENV_LAUNCHER__"}


@pytest.mark.parametrize("modules", ["tensorflow, tf_keras, horovod.tensorflow", "torch._dynamo"])
def test_what_libraries_read_when_they_are_loaded_is_compared(modules: str, tmp_path: Path) -> None:
    (tmp_path / "notes.c").write_text(NOTES)
    library = tmp_path / "notes.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, tmp_path / "notes.c", "-ldl"], check=True)
    with (tmp_path / "read").open("wb") as notes:
        env = {**os.environ, "LD_PRELOAD": str(library), "NOTES_FD": str(notes.fileno()), "TF_USE_LEGACY_KERAS": "1"}
        command = [sys.executable, "-c", f"import {modules}"]
        subprocess.run(command, env=env, pass_fds=[notes.fileno()], check=True, stderr=subprocess.DEVNULL)
    names = set((tmp_path / "read").read_text(encoding="utf-8", errors="replace").split())
    assert len(names) > 50
    assert {name for name in names - OTHERS if not is_read_at_load(name)} == set()
