"""Trace the functions of a ``tf.data`` pipeline quickly.

TensorFlow makes the functions of a pipeline anew for each iterator, that is, in each epoch. By default it treats them
as functions over several devices: it brings their graph into another form, optimises, places and partitions it, which
for ``tf.io.parse_example`` takes 6 to 8 ms of a processor, as long as to read and parse 5,000 small records. A function
with the attribute ``experimental_ints_on_device`` is made for the one device that its dataset is on, in 1 ms
(``FunctionMetadata::ValidateMultiDevice`` in TensorFlow's ``core/data/captured_function.cc``; TensorFlow's own
``multi_device_iterator_ops.py`` uses it).

That is done where nothing else changes by it: without a GPU, for functions that take and give dense tensors and hold
neither variables nor other resources. Elsewhere these are ``Dataset.map`` and ``Dataset.flat_map``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

_ATTRIBUTES = {"experimental_ints_on_device": True}
#: The first half of a shuffle's seed, as TensorFlow has it where nobody has set another.
_GRAPH_SEED = 87654321


class Functions:
    """Functions that were made, for pipelines that are made like an earlier one: to trace them takes longest."""

    def __init__(self) -> None:
        self._made: dict[Any, Any] = {}
        self._pipelines: dict[Any, Any] = {}
        #: Whether one had to be an ordinary one, which is traced for each pipeline: it may see other Python values.
        self.ordinary = False

    def pipeline(self, records: Any, make: Callable[[Any], Any], key: Hashable) -> Any:
        """Return ``make(records)``, from the second time on as one operation if all functions are light.

        TensorFlow runs each of a pipeline's operations as a graph of its own, through all passes over graphs, which
        takes it longer than the operation does (0.3 ms).

        Args:
            records: A dataset.
            make: Makes a pipeline of it, which depends on nothing else but the key.
            key: What tells it from others: of pipelines with one key and records of one kind all are as the first.
        """
        import tensorflow as tf

        spec = records.element_spec
        found = (key, repr(spec))
        ordinary = self.ordinary or not tf.executing_eagerly() or bool(tf.config.list_physical_devices("GPU"))
        if found not in self._pipelines or ordinary:
            self._pipelines[found] = None
            return make(records)
        if self._pipelines[found] is None:
            kept: list[Any] = []

            def variant_of(variant: Any) -> Any:
                kept.append(make(tf.data.experimental.from_variant(variant, spec)))
                return kept[-1]._variant_tensor

            made = tf.function(variant_of, input_signature=[tf.TensorSpec([], tf.variant)], autograph=False)
            self._pipelines[found] = made.get_concrete_function(), kept
        one, kept = self._pipelines[found]
        return _of(one(records._variant_tensor), kept[-1].element_spec, records, one, kept)

    def made(self, dataset: Any, function: Callable[..., Any], key: Hashable) -> Any:
        """Return the function for the elements of a dataset; None where it has to be an ordinary one.

        Args:
            dataset: The dataset.
            function: The function.
            key: What tells it from others: of functions with one key and elements of one kind all get the first.
        """
        found = (key, repr(dataset.element_spec))
        if found not in self._made:
            self._made[found] = _light(dataset, function)
        return self._made[found]


def parallel_map(
    dataset: Any, function: Callable[..., Any], *, functions: Functions | None = None, key: Hashable = None
) -> Any:
    """Map as ``dataset.map(function, num_parallel_calls=tf.data.AUTOTUNE)`` does.

    Args:
        dataset: The dataset.
        function: Gets an element, a tuple's components one by one.
        functions: Those that were made before; None for none.
        key: Which of them this is.
    """
    import tensorflow as tf

    def make(**arguments: Any) -> Any:
        return tf.raw_ops.ParallelMapDatasetV2(
            num_parallel_calls=tf.data.AUTOTUNE, deterministic="default", **arguments
        )

    found = _mapped(dataset, function, make, functions, key)
    return dataset.map(function, num_parallel_calls=tf.data.AUTOTUNE) if found is None else found


def map_in_turn(
    dataset: Any, function: Callable[..., Any], *, functions: Functions | None = None, key: Hashable = None
) -> Any:
    """Map as ``dataset.map(function)`` does; the arguments are those of :func:`parallel_map`."""
    import tensorflow as tf

    found = _mapped(dataset, function, tf.raw_ops.MapDataset, functions, key)
    return dataset.map(function) if found is None else found


def _mapped(
    dataset: Any,
    function: Callable[..., Any],
    make: Callable[..., Any],
    functions: Functions | None,
    key: Hashable,
) -> Any:
    import tensorflow as tf

    light = _light(dataset, function) if functions is None else functions.made(dataset, function, key)
    outputs = light.structured_outputs if light is not None else None
    if light is None or not _plain(outputs):
        if functions is not None:
            functions.ordinary = True
        return None
    spec = tf.nest.map_structure(lambda output: tf.TensorSpec(output.shape, output.dtype), outputs)
    flat = tf.nest.flatten(spec)
    variant = make(
        input_dataset=dataset._variant_tensor,
        other_arguments=light.captured_inputs,
        f=light,
        output_types=[one.dtype for one in flat],
        output_shapes=[one.shape for one in flat],
        preserve_cardinality=True,
    )
    return _of(variant, spec, dataset, light)


def flat_map(dataset: Any, function: Callable[..., Any]) -> Any:
    """Map as ``dataset.flat_map(function)`` does.

    Args:
        dataset: The dataset.
        function: Gets an element, a tuple's components one by one, and returns a dataset.
    """
    import tensorflow as tf

    made: list[Any] = []

    def variant_of(*element: Any) -> Any:
        made.append(function(*element))
        return made[-1]._variant_tensor

    light = _light(dataset, variant_of)
    if light is None:
        return dataset.flat_map(function)
    spec = made[-1].element_spec
    flat = tf.nest.flatten(spec)
    if not all(type(one) is tf.TensorSpec for one in flat):
        return dataset.flat_map(function)
    variant = tf.raw_ops.FlatMapDataset(
        input_dataset=dataset._variant_tensor,
        other_arguments=light.captured_inputs,
        f=light,
        output_types=[one.dtype for one in flat],
        output_shapes=[one.shape for one in flat],
    )
    return _of(variant, spec, dataset, (light, made))


def shuffled(dataset: Any, buffer: int, seed: Any) -> Any:
    """Shuffle as ``dataset.shuffle(buffer, seed, reshuffle_each_iteration=False)`` does, with a seed that is a tensor.

    ``Dataset.shuffle`` compares its seed as a Python value where ``tf.random.set_seed(0)`` has been called, and mixes
    that global seed in: here the order is the seed's alone.

    Args:
        dataset: The dataset.
        buffer: Records in the shuffle buffer.
        seed: A scalar tensor.
    """
    import tensorflow as tf

    spec = dataset.element_spec
    variant = tf.raw_ops.ShuffleDataset(
        input_dataset=dataset._variant_tensor,
        buffer_size=tf.constant(buffer, tf.int64),
        seed=tf.constant(_GRAPH_SEED, tf.int64),
        seed2=seed,
        reshuffle_each_iteration=False,
        **dataset._flat_structure,
    )
    return _of(variant, spec, dataset)


def _light(dataset: Any, function: Callable[..., Any]) -> Any:
    """Return the function for the elements of a dataset; None where it has to be an ordinary one."""
    import tensorflow as tf

    spec = dataset.element_spec
    arguments = spec if type(spec) is tuple else (spec,)  # as Dataset.map: a named tuple is one argument
    if not tf.executing_eagerly() or tf.config.list_physical_devices("GPU"):
        return None
    if not all(type(one) is tf.TensorSpec for one in tf.nest.flatten(arguments)):
        return None

    def of_its_own(*element: Any) -> Any:
        # The function may change what it gets, a dictionary for one; tf.function would not let it.
        return function(*tf.nest.map_structure(lambda tensor: tensor, element))

    try:
        made = tf.function(of_its_own, input_signature=arguments, experimental_attributes=_ATTRIBUTES)
    except TypeError:  # a TensorFlow without attributes
        return None
    light = made.get_concrete_function()
    return None if any(captured.dtype == tf.resource for captured in light.captured_inputs) else light


def _plain(outputs: Any) -> bool:
    """Return whether ``Dataset.map`` would leave these unchanged: tensors, in tuples and mappings."""
    import tensorflow as tf

    if isinstance(outputs, tuple):
        return all(_plain(output) for output in outputs)
    if isinstance(outputs, dict):
        return all(_plain(output) for output in outputs.values())
    return isinstance(outputs, tf.Tensor)


def _of(variant: Any, spec: Any, *kept: Any) -> Any:
    import tensorflow as tf

    found = tf.data.experimental.from_variant(variant, spec)
    found._fleetfit_kept = kept  # Python's functions within live as long as somebody has the dataset
    return found
