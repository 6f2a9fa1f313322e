"""Change optimizers so that they reduce gradients over the ranks before they apply the gradients.

The class of the user's optimizer is replaced by a subclass. The subclass reduces the gradients and then calls the
method of the original class. The optimizer's state, its schedule, its clipping and its name in a saved model do not
change. The subclass works with tf_keras and with Keras 3. With Keras 3, Horovod's own ``DistributedOptimizer`` does not
reduce gradients, and raises no error.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from container.checkpoint import keras_compat
from container.checkpoint.keras_compat import Keras
from container.contract.errors import RefusedError
from container.contract.names import unknown
from container.distributed.tensorflow.collectives import TensorCollectives, TensorsAlone
from container.distributed.tensorflow.compression import reduce_fp16
from container.distributed.tensorflow.host_updates import HostUpdates

OPERATIONS = ("average", "sum", "adasum")
COMPRESSIONS = ("none", "fp16")

#: Name of the attribute with the :class:`Reduction`. The attribute is set on the subclass, because Keras would track
#: and save an attribute of the instance.
_REDUCTION = "_fleetfit_reduction"

_numbers = itertools.count()


class Reduction:
    """The reduction of one optimizer's gradients.

    Args:
        collectives: The collective operations of the ranks.
        op: The operation: ``"average"``, ``"sum"`` or ``"adasum"``.
        compression: ``"fp16"`` to send gradients as 16-bit floats if possible. None for no compression.
        learning_rate: The optimizer's learning rate without a warm-up. None if a schedule determines the learning rate.

    Attributes:
        waited_s: A TensorFlow variable with the total time, in seconds, from this rank's last gradient to the last
            reduced gradient of each step. None if the time is not measured.
        reductions: A TensorFlow variable with the number of measured reductions. None if the time is not measured.
        steps: A TensorFlow variable with the number of reductions. None without compression.
        whole_steps: A TensorFlow variable with the number of reductions whose gradients could not be sent as 16-bit
            floats. None without compression.
    """

    def __init__(
        self, collectives: TensorCollectives, *, op: str, compression: str | None, learning_rate: float | None
    ) -> None:
        self.op = op
        self.compression = compression
        self.learning_rate = learning_rate
        self.steps: Any = None
        self.whole_steps: Any = None
        self._collectives = collectives
        # Ranks create their optimizers in the same order, so that the names agree.
        self._name = f"fleetfit.gradients.{next(_numbers)}"
        self.waited_s: Any = None
        self.reductions: Any = None
        self._host_updates: HostUpdates | None = getattr(collectives, "host_updates", None)
        if self._host_updates is not None:
            self._host_updates.prepare()
        if _is_measured(collectives):
            import tensorflow as tf

            self.waited_s = tf.Variable(0.0, dtype=tf.float64, trainable=False, name="waited_s")
            self.reductions = tf.Variable(0, dtype=tf.int64, trainable=False, name="reductions")
        if compression is not None:
            import tensorflow as tf

            self.steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="fp16_steps")
            self.whole_steps = tf.Variable(0, dtype=tf.int64, trainable=False, name="fp16_whole_steps")

    def __call__(self, gradients: Sequence[Any]) -> list[Any]:
        """Reduce gradients. Sparse gradients are converted to dense gradients. A gradient that is None remains None."""
        import tensorflow as tf

        places = [place for place, gradient in enumerate(gradients) if gradient is not None]
        dense = [tf.convert_to_tensor(gradients[place]) for place in places]
        results = list(gradients)
        for place, gradient in zip(places, self._timed(dense), strict=True):
            results[place] = gradient
        if self._host_updates is not None and dense:
            # The last layer's gradients are ready first. The flag is sent in one message with these gradients, before
            # the other gradients.
            self._host_updates.reduce_with(self._reduce_number, after=dense[-1])
        return results

    def _reduce_number(self, number: Any) -> Any:
        # With the same operation as the gradients: Horovod sends tensors with the same operation in one message.
        op = self.op if self.op != "adasum" else "sum"
        [reduced] = self._collectives.reduce([number], op, name=f"{self._name}.host_updates")
        return reduced

    def _timed(self, gradients: list[Any]) -> list[Any]:
        """Reduce gradients, and measure the time from the last gradient to the last reduced gradient.

        The measurement does not delay any operation.
        """
        if self.waited_s is None or not gradients:
            return self._reduce(gradients)
        import tensorflow as tf

        with tf.control_dependencies(gradients):
            begin = tf.timestamp()
        reduced = self._reduce(gradients)
        with tf.control_dependencies([*reduced, begin]):
            end = tf.timestamp()
        self.waited_s.assign_add(end - begin)
        self.reductions.assign_add(1)
        return reduced

    def _reduce(self, gradients: list[Any]) -> list[Any]:
        if self.compression is None:
            return self._collectives.reduce(gradients, self.op, name=self._name)
        self.steps.assign_add(1)
        return reduce_fp16(
            self._collectives,
            gradients,
            self.op,
            name=self._name,
            on_whole=lambda: self.whole_steps.assign_add(1),
        )


def distribute(
    optimizer: Any, collectives: TensorCollectives, *, op: str = "average", compression: str | None = None
) -> Any:
    """Change an optimizer so that the optimizer reduces its gradients over the ranks.

    Args:
        optimizer: An optimizer of tf_keras or Keras 3. This object is changed and returned.
        collectives: The collective operations of the ranks.
        op: The operation: ``"average"``, ``"sum"``, or Horovod's ``"adasum"``.
        compression: ``"fp16"`` to send gradients as 16-bit floats if possible. None for no compression.

    Raises:
        ValueError: an option is unknown.
        RefusedError: the optimizer or the combination of options is not supported.
    """
    if op not in OPERATIONS:
        raise ValueError(unknown("op", op, OPERATIONS))
    if compression not in (None, *COMPRESSIONS):
        raise ValueError(unknown("compression", compression, COMPRESSIONS))
    if op == "adasum" and compression not in (None, "none"):
        raise RefusedError(
            "compression='fp16' with op='adasum' is not supported: Adasum weighs gradients by their products, which "
            "16-bit floats cannot hold. Use only one of these options."
        )
    # A single process sends nothing, so compression would only lose precision.
    compression = None if compression == "none" or isinstance(collectives, TensorsAlone) else compression
    collectives.check_op(op)
    keras = keras_compat.keras_of(optimizer)
    if keras is None:
        raise RefusedError(
            f"a {type(optimizer).__module__}.{type(optimizer).__qualname__} cannot be distributed here. Give an "
            "optimizer of tf_keras or keras. For an optimizer of tf.compat.v1, use hvd.DistributedOptimizer."
        )
    if reduction_of(optimizer) is not None:
        raise RefusedError("the optimizer reduces its gradients already: cluster.optimizer() was called twice.")
    if is_horovods(optimizer):
        raise RefusedError(
            "the optimizer is Horovod's DistributedOptimizer already. Give cluster.optimizer() an optimizer that is "
            "not distributed."
        )
    reduction = Reduction(
        collectives, op=op, compression=compression, learning_rate=keras_compat.learning_rate(optimizer)
    )
    object.__setattr__(optimizer, "__class__", _subclass(type(optimizer), reduction, keras))
    return optimizer


def _subclass(base: type[Any], reduction: Reduction, keras: Keras) -> type[Any]:
    def apply(self: Any, grads: Sequence[Any], trainable_variables: Any = None) -> Any:
        return base.apply(self, reduction(list(grads)), trainable_variables)

    def apply_gradients(self: Any, grads_and_vars: Any, *args: Any, **kwargs: Any) -> Any:
        pairs = list(grads_and_vars)
        gradients = reduction([gradient for gradient, _ in pairs])
        merged = [(gradient, variable) for gradient, (_, variable) in zip(gradients, pairs, strict=True)]
        return base.apply_gradients(self, merged, *args, **kwargs)

    # In Keras 3, apply_gradients() calls apply(); a custom training loop may call apply() as well.
    methods = {"apply": apply} if keras is Keras.THREE else {"apply_gradients": apply_gradients}
    return type(
        base.__name__,
        (base,),
        {
            **methods,
            _REDUCTION: reduction,
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": base.__doc__,
        },
    )


def _is_measured(collectives: TensorCollectives) -> bool:
    """Return whether to measure the waiting times for reductions.

    The waiting times are not measured with a GPU, because reading the time in a step would wait for the GPU's
    operations.
    """
    if isinstance(collectives, TensorsAlone):
        return False
    import tensorflow as tf

    return not tf.config.get_visible_devices("GPU")


def reduction_of(optimizer: Any) -> Reduction | None:
    """Return the reduction of an optimizer's gradients.

    Return None if :func:`distribute` has not been called for the optimizer.
    """
    found: Reduction | None = getattr(type(optimizer), _REDUCTION, None)
    return found


def is_horovods(optimizer: Any) -> bool:
    """Return whether an optimizer is Horovod's ``DistributedOptimizer``."""
    return any(kind.__module__.startswith("horovod.") for kind in type(optimizer).__mro__) or hasattr(
        optimizer, "_allreduce_grads"
    )


def is_inside_loss_scaling(optimizer: Any) -> bool:
    """Return whether the optimizer is a LossScaleOptimizer that wraps a distributed optimizer.

    Keras adds such a wrapper under the policy mixed_float16.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    return inner is not None and reduction_of(inner) is not None


def why_apart(optimizer: Any) -> str:
    """Return a sentence with the likely cause of differing weights. The cause is derived from the model's optimizer."""
    if is_inside_loss_scaling(optimizer):
        return (
            "The model's optimizer is a LossScaleOptimizer (Keras adds it under the policy mixed_float16) around the "
            "distributed optimizer. Such a LossScaleOptimizer skips steps on one rank but not on others. Compile the "
            "model with cluster.optimizer(LossScaleOptimizer(…))."
        )
    if is_horovods(optimizer):
        return (
            "The optimizer is Horovod's and reduces its gradients, so something else changed the weights on some ranks."
        )
    if optimizer is None or reduction_of(optimizer) is None:
        return (
            "The model's optimizer is not distributed, so every rank trains by itself. Compile the model with "
            "cluster.optimizer(optimizer)."
        )
    return (
        "The optimizer is distributed, so there is another cause. Check whether the script assigns weights on some "
        "ranks, and whether a second optimizer is used without cluster.optimizer(). Without cluster.callbacks() or "
        "cluster.broadcast(), the ranks start with different weights."
    )
