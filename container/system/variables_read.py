"""Find environment variables that are read while modules are imported."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import ClassVar

#: Prefixes of the variables that the interpreter reads when it starts, or that libraries read when they are loaded.
_READ_AT_LOAD = (
    *("ABSL_", "ACC_", "BLIS_", "CUDNN_", "DISABLE_HOST_", "DNNL_", "GCS_", "GFORTRAN_", "GLIBC_", "GOMP_", "GOTO_"),
    *("GRPC_", "HDF5_", "HOROVOD_AUTOTUNE_", "INTEL_", "I_MPI_", "JAX_", "KERAS_", "KINETO_", "KMP_", "LANG", "LC_"),
    *("LD_", "LLVM_", "MALLOC_", "MKL", "MPI_", "NPY_", "NUMPY_", "OMP_", "ONEDNN_", "OPENBLAS_", "OPENSSL_", "PYTHON"),
    *("PYTORCH_", "TF_CPP_", "TF_ENABLE", "TF_USE_", "TORCH_", "TZ", "UCX_"),
)
#: Module that iterates over all variables while it is imported -> prefix of the only variables that the module uses.
_LOOKED_FOR = {"tqdm.utils": "TQDM_"}


def is_read_at_load(name: str) -> bool:
    """Return whether a variable may be read when the interpreter or a library is loaded."""
    return name.startswith(_READ_AT_LOAD)


class NotingEnviron(type(os.environ)):  # type: ignore[misc]
    """The class of ``os.environ`` while reads of variables are recorded.

    Attributes:
        seen: The names of the variables that were read.
        whole: Whether the program has iterated over all variables.
    """

    seen: ClassVar[set[str]] = set()
    whole: ClassVar[bool] = False

    def __getitem__(self, name: str) -> str:
        self.seen.add(name)
        value: str = super().__getitem__(name)
        return value

    def __iter__(self) -> Iterator[str]:
        frame = sys._getframe(1)
        while frame.f_back and frame.f_globals.get("__name__") in ("os", "collections.abc", "_collections_abc"):
            frame = frame.f_back
        prefix = _LOOKED_FOR.get(frame.f_globals.get("__name__", ""))
        NotingEnviron.whole = NotingEnviron.whole or prefix is None
        return iter([name for name in super().__iter__() if name.startswith(prefix or "")])
