"""The source changes that let Horovod 0.28.1 build and run with TensorFlow 2.21 and today's PyTorch, and survive what
elastic jobs meet.

Raise :data:`REVISION` with every change here: it is part of the wheel's version and of its key in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

REVISION = 3


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
        """Make the change in the source under ``root``.

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

# Elastic ranks that meet while one of them dies. Horovod's core throws in its background thread then, where nothing
# catches it, and every process ends by std::terminate. Here they give up that meeting and ask for their next ranks, as
# they do after any other loss: hvd.init() takes longer, and the training goes on from the last commit.
_MEETING_EDITS = (
    Edit(
        path="horovod/common/operations.cc",
        before="  {\n    global_gloo_context.Initialize(ParseGlooIface());\n  }\n",
        after="""  {
    const bool elastic = GetBoolEnvOrDefault(HOROVOD_ELASTIC, false);
    while (true) {
      try {
        global_gloo_context.Initialize(ParseGlooIface());
        if (state.control_operation == LibType::GLOO) {
          state.process_set_table.Initialize(global_gloo_context);
        }
        break;
      } catch (const gloo::IoException& ex) {
        if (!elastic) {
          throw;
        }
        LOG(INFO) << "A rank was lost while the ranks met; they meet again: " << ex.what();
        state.process_set_table.Get(0).Finalize(SHUT_DOWN_ERROR);
        // From now on Initialize() asks for this process's next rank.
        global_gloo_context.Finalize();
      }
    }
  }
""",
        reason="A connection that is lost while ranks meet makes elastic ranks meet again.",
    ),
    Edit(
        path="horovod/common/operations.cc",
        before='#include "utils/env_parser.h"\n',
        after='#include "utils/env_parser.h"\n\n#if HAVE_GLOO\n#include "gloo/common/error.h"\n#endif\n',
        reason="gloo::IoException, in all of Gloo's errors the one of lost connections and of time limits.",
    ),
    Edit(
        path="horovod/common/gloo/http_store.cc",
        before="""      if (response.status != HTTP_OK && response.status != HTTP_NOT_FOUND) {
""",
        after="""      if (response.status == 410) {
        GLOO_THROW_IO_EXCEPTION(GLOO_ERROR_MSG("a rank of this meeting has ended"));
      }
      if (response.status != HTTP_OK && response.status != HTTP_NOT_FOUND) {
""",
        reason="The rendezvous says with 410 that a rank will not come: nobody need wait for its address.",
    ),
    Edit(
        path="horovod/common/gloo/http_store.cc",
        before="    } catch (std::exception& e) {\n",
        after="    } catch (gloo::IoException&) {\n      throw;\n    } catch (std::exception& e) {\n",
        reason="That is no failed request, which would be repeated.",
    ),
    Edit(
        path="horovod/common/gloo/gloo_context.cc",
        before="  context->connectFullMesh(*store, dev);\n  {\n",
        after="""  // Gloo waits five times as long for a connection. Who has been told all addresses connects at once.
  const bool elastic = GetBoolEnvOrDefault(HOROVOD_ELASTIC, false);
  context->connectFullMesh(*store, dev, elastic ? std::chrono::milliseconds(1000) : timeout);
  {
""",
        reason="One that dies after it has told its address is not noticed by those that wait to be called by it.",
    ),
    Edit(
        path="third_party/gloo/gloo/rendezvous/context.h",
        before="""      Store& store,
      std::shared_ptr<transport::Device>& dev);

 protected:
""",
        after="""      Store& store,
      std::shared_ptr<transport::Device>& dev,
      std::chrono::milliseconds connectTimeout = kNoTimeout);

 protected:
""",
        reason="The limit of connecting, apart from that of waiting for the others and of all that follows.",
    ),
    Edit(
        path="third_party/gloo/gloo/rendezvous/context.cc",
        before="""    std::shared_ptr<transport::Device>& dev) {
  std::vector<char> allBytes;
""",
        after="""    std::shared_ptr<transport::Device>& dev,
    std::chrono::milliseconds connectTimeout) {
  std::vector<char> allBytes;
""",
        reason="As above.",
    ),
    Edit(
        path="third_party/gloo/gloo/rendezvous/context.cc",
        before="""  transportContext->setTimeout(getTimeout());
  for (int i = 0; i < size; i++) {
""",
        after="""  transportContext->setTimeout(connectTimeout == kNoTimeout ? getTimeout() : connectTimeout);
  for (int i = 0; i < size; i++) {
""",
        reason="A pair takes the limit that its context has when it is made.",
    ),
    Edit(
        path="third_party/gloo/gloo/rendezvous/context.cc",
        before="""  // Connect every pair
  for (int i = 0; i < size; i++) {
    if (i == rank) {
      continue;
    }

    // Wait for address of other side of this pair to become available
    std::ostringstream key;
    key << i;
    store.wait({key.str()}, getTimeout());

    // Connect to other side of this pair
""",
        after="""  transportContext->setTimeout(getTimeout());

  // Wait for all before any is called: who connects has nobody left to wait for.
  for (int i = 0; i < size; i++) {
    if (i != rank) {
      store.wait({std::to_string(i)}, getTimeout());
    }
  }

  // Connect every pair
  for (int i = 0; i < size; i++) {
    if (i == rank) {
      continue;
    }

    std::ostringstream key;
    key << i;

    // Connect to other side of this pair
""",
        reason="The short limit of connecting must not count the time until the last one has come.",
    ),
    Edit(
        path="third_party/gloo/gloo/transport/tcp/pair.cc",
        before="  peer_ = Address::fromPeerName(fd_);\n",
        after="""  try {
    peer_ = Address::fromPeerName(fd_);
  } catch (const ::gloo::EnforceNotMet&) {
    // It has hung up already, which the first read tells.
  }
""",
        reason="The thread that this is thrown in has nothing to catch it.",
    ),
)

# What ``hvd.elastic.run`` makes of an operation that fails because a rank is lost.
_LOSS_EDITS = (
    Edit(
        path="horovod/tensorflow/elastic.py",
        before="""        try:
            return func(state, *args, **kwargs)
        except UnknownError as e:
            if 'HorovodAllreduce' in e.message or \\
                    'HorovodAllgather' in e.message or \\
                    'HorovodBroadcast' in e.message:
                raise HorovodInternalError(e)
    return run_fn(wrapper, _reset)
""",
        after="""        with _telling_losses():
            return func(state, *args, **kwargs)
    return run_fn(wrapper, _reset)


@contextlib.contextmanager
def _telling_losses():
    from tensorflow.python.framework.errors_impl import UnknownError

    try:
        yield
    except UnknownError as e:
        if 'horovod' in e.message.lower() or 'gloo' in e.message.lower():
            raise HorovodInternalError(e) from e
        raise
""",
        reason="An UnknownError of an operation with a name of its own ended the training as if it were complete.",
    ),
    Edit(
        path="horovod/tensorflow/elastic.py",
        before="    from tensorflow.python.framework.errors_impl import UnknownError\n\n    def wrapper(",
        after="    def wrapper(",
        reason="It is imported where it is used.",
    ),
    Edit(
        path="horovod/tensorflow/elastic.py",
        before="from horovod.tensorflow.mpi_ops import _executing_eagerly, init, rank, shutdown\n",
        after="from horovod.tensorflow.mpi_ops import _executing_eagerly, init, rank, shutdown\n\nimport contextlib\n",
        reason="For the passage above.",
    ),
    Edit(
        path="horovod/tensorflow/elastic.py",
        before="""    def sync(self):
        self._bcast_model()
        self._save_model()
        super(TensorFlowKerasState, self).sync()
""",
        after="""    def sync(self):
        with _telling_losses():
            self._bcast_model()
            self._save_model()
            super(TensorFlowKerasState, self).sync()
""",
        reason="A rank that is lost while the others take its state, which is not the wrapped function's.",
    ),
    Edit(
        path="horovod/tensorflow/elastic.py",
        before="""    def sync(self):
        if self.session is not None:
            self.session.run(self._bcast_op)
        self._save_model()
        super(TensorFlowState, self).sync()
""",
        after="""    def sync(self):
        with _telling_losses():
            if self.session is not None:
                self.session.run(self._bcast_op)
            self._save_model()
            super(TensorFlowState, self).sync()
""",
        reason="As above.",
    ),
)

# They change nothing of a wheel without PyTorch.
_TORCH_EDITS = (
    Edit(
        path="horovod/torch/CMakeLists.txt",
        before="    set(CMAKE_CXX_STANDARD 14)\n",
        after="    set(CMAKE_CXX_STANDARD 20)\n    set(Pytorch_CXX17 TRUE PARENT_SCOPE)\n",
        reason="PyTorch's headers are C++17 since 2.1, and C++20 since 2.13 at the latest.",
    ),
    Edit(
        path="horovod/torch/CMakeLists.txt",
        before="        list(APPEND PYTORCH_LINKER_LIBS gloo)\n",
        after="        list(APPEND PYTORCH_LINKER_LIBS compatible17_gloo)\n",
        reason="What C++17 defines in a header, a Gloo of C++11 defines once more: they cannot be linked.",
    ),
    Edit(
        path="CMakeLists.txt",
        before="if(HAVE_GLOO AND (DEFINED Tensorflow_CXX17 AND Tensorflow_CXX17))\n",
        after="if(HAVE_GLOO AND (Tensorflow_CXX17 OR Pytorch_CXX17))\n",
        reason="As above, where TensorFlow has not asked for that Gloo.",
    ),
    Edit(
        path="CMakeLists.txt",
        before="    if (Tensorflow_CXX11)\n        target_compile_definitions(compatible17_gloo",
        after="    if (Tensorflow_CXX11 OR Pytorch_CXX11)\n        target_compile_definitions(compatible17_gloo",
        reason="As above: without TensorFlow it would be compiled for the old ABI.",
    ),
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
    Edit(
        path="horovod/tensorflow/__init__.py",
        before="from horovod.tensorflow import elastic\n",
        after="""from tensorflow.python.autograph.core import config as _autograph

_autograph.CONVERSION_RULES = (_autograph.DoNotConvert('horovod'), *_autograph.CONVERSION_RULES)

from horovod.tensorflow import elastic
""",
        reason="AutoGraph rewrote Horovod's own functions for each process's first step, which took nine tenths of it, "
        "some two seconds. They have no use for that: what depends on tensors is in tf.cond already.",
    ),
    Edit(
        path="horovod/tensorflow/util.py",
        before="    return tf.function(f)\n",
        after="    return tf.function(f, autograph=False)\n",
        reason="As above: what is made a function by name is rewritten whatever the rules say.",
    ),
    *_MEETING_EDITS,
    *_LOSS_EDITS,
    *_TORCH_EDITS,
)


def apply(root: Path) -> None:
    """Make all changes in an unpacked Horovod source.

    Raises:
        PatchMismatch: If the source differs from 0.28.1 where it matters.
    """
    for edit in HOROVOD_EDITS:
        edit.apply(root)
