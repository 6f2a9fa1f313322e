"""The source changes that let Horovod 0.28.1 build and run with TensorFlow 2.21.

Raise :data:`REVISION` with every change here: it is part of the wheel's version and of its key in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

REVISION = 2


class PatchMismatch(Exception):
    """The source is not the one that the changes were written for."""


@dataclass(frozen=True, kw_only=True)
class Edit:
    """Replaces one passage of a file.

    Attributes:
        path: The file, relative to the source's root.
        before: The passage, which must occur exactly once.
        after: What stands there afterwards.
        reason: Why the change is needed.
    """

    path: str
    before: str
    after: str
    reason: str

    def apply(self, root: Path) -> None:
        """Makes the change in the source under ``root``.

        Raises:
            PatchMismatch: If the passage does not occur exactly once; the file is then as it was.
        """
        file = root / self.path
        text = file.read_text(encoding="utf-8")
        if (count := text.count(self.before)) != 1:
            raise PatchMismatch(f"{self.path}: the passage to change occurs {count} times, not once: {self.before!r}")
        file.write_text(text.replace(self.before, self.after), encoding="utf-8")


_KERAS_REASON = (
    "Take the backend of the Keras that TensorFlow uses (TF_USE_LEGACY_KERAS decides), as the rest of the file does. "
    "`keras` is always Keras 3, whose backend lacks what MetricAverageCallback calls."
)

HOROVOD_EDITS = (
    Edit(
        path="horovod/tensorflow/xla_mpi_ops.cc",
        before="\n\n#if TENSORFLOW_VERSION >= 2006000000\n",
        after="\n\n#if TENSORFLOW_VERSION >= 2006000000 && HAVE_GPU\n",
        reason="TensorFlow's wheel no longer carries the XLA headers; only builds with GPU operations use this file.",
    ),
    *(
        Edit(
            path=f"horovod/tensorflow/keras/{name}",
            before='if is_version_greater_equal_than(tf.__version__, "2.6.0"):\n    from keras import backend as K\n',
            after='if is_version_greater_equal_than(tf.__version__, "2.6.0"):\n    K = keras.backend\n',
            reason=_KERAS_REASON,
        )
        for name in ("__init__.py", "callbacks.py")
    ),
    Edit(
        path="horovod/tensorflow/__init__.py",
        before="        _SessionRunHook = tf.train.SessionRunHook\n",
        after="        _SessionRunHook = tf.compat.v1.train.SessionRunHook\n",
        reason="Without tf.estimator, which TensorFlow 2.16 dropped, there would be no BroadcastGlobalVariablesHook.",
    ),
    Edit(
        path="CMakeLists.txt",
        before="    add_subdirectory(third_party/gloo)\n",
        after="    add_subdirectory(third_party/gloo EXCLUDE_FROM_ALL)\n",
        reason="A C++17 TensorFlow links a second copy of gloo; not compiling this one saves a quarter of the time.",
    ),
    Edit(
        path="setup.py",
        before="        if self.verbose:\n            make_args.append('VERBOSE=1')\n",
        after="",
        reason="That is an option of make. ninja, which reports its progress as [done/all], takes it for a target.",
    ),
)


def apply(root: Path) -> None:
    """Makes all changes in an unpacked Horovod source.

    Raises:
        PatchMismatch: If the source differs from 0.28.1 where it matters.
    """
    for edit in HOROVOD_EDITS:
        edit.apply(root)
