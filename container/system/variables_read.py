"""Which environment variables are read while modules are imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping

#: How the names of variables begin that the interpreter reads when it starts, or libraries when they are loaded.
_READ_AT_LOAD = (
    *("ABSL_", "ACC_", "BLIS_", "CUDNN_", "DISABLE_HOST_", "DNNL_", "GCS_", "GFORTRAN_", "GLIBC_", "GOMP_", "GOTO_"),
    *("GRPC_", "HDF5_", "HOROVOD_AUTOTUNE_", "INTEL_", "I_MPI_", "JAX_", "KERAS_", "KINETO_", "KMP_", "LANG", "LC_"),
    *("LD_", "LLVM_", "MALLOC_", "MKL", "MPI_", "NPY_", "NUMPY_", "OMP_", "ONEDNN_", "OPENBLAS_", "OPENSSL_", "PYTHON"),
    *("PYTORCH_", "TF_CPP_", "TF_ENABLE", "TF_USE_", "TORCH_", "TZ", "UCX_"),
)
#: Modules that look through all variables while they are imported, but only for those whose names begin like this.
_LOOKED_FOR = {"tqdm.utils": b"TQDM_"}


def is_read_at_load(name: str) -> bool:
    """Return whether a variable may be read when the interpreter or a library is loaded."""
    return name.startswith(_READ_AT_LOAD)


class Noted(dict[bytes, bytes]):
    """The dict behind ``os.environ``, which notes the names that are looked at, or ``whole`` for all of them."""

    def __init__(self, values: Mapping[bytes, bytes]) -> None:
        super().__init__(values)
        self.seen: set[object] = set()
        self.whole = False

    def __getitem__(self, name: bytes) -> bytes:
        self.seen.add(name)
        return super().__getitem__(name)

    def __contains__(self, name: object) -> bool:
        self.seen.add(name)
        return super().__contains__(name)

    def __iter__(self) -> Iterator[bytes]:
        frame = sys._getframe(1)
        while frame.f_back and frame.f_globals.get("__name__") in ("os", "collections.abc", "_collections_abc"):
            frame = frame.f_back
        prefix = _LOOKED_FOR.get(frame.f_globals.get("__name__", ""))
        self.whole = self.whole or prefix is None
        return iter([name for name in super().__iter__() if name.startswith(prefix or b"")])
