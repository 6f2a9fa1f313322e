"""Records that are parsed one by one or many at once: the same. Run by test_parsing.py, alone."""

from __future__ import annotations

import collections
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from container import distributed
from container.distributed.tensorflow.data import _PARSED_AT_ONCE
from container.distributed.tensorflow.progress import why_apart

cluster = distributed.init()
#: More than are parsed at once, and not a multiple of it, nor of any batch.
COUNT = 2 * _PARSED_AT_ONCE + 76
BATCHES = (64, _PARSED_AT_ONCE + 100, 5000)


def strings() -> Any:
    return tf.data.Dataset.range(COUNT).map(tf.strings.as_string)


def unknown() -> Any:
    """Its length is not known."""
    return strings().filter(lambda value: True)


def parse_one(text: Any) -> Any:
    number = tf.strings.to_number(text, tf.int64)
    pixels = tf.cast(tf.fill([3], number), tf.float32)
    return {"pixels": pixels, "text": text}, number % 10


def parse_many(texts: Any) -> Any:
    numbers = tf.strings.to_number(texts, tf.int64)
    pixels = tf.repeat(tf.cast(numbers, tf.float32)[:, tf.newaxis], 3, axis=1)
    return {"pixels": pixels, "text": texts}, numbers % 10


def values(batches: Any) -> list[Any]:
    return [tf.nest.map_structure(lambda leaf: leaf.numpy().tolist(), batch) for batch in batches]


def check_batches_are_those_of_records_parsed_one_by_one() -> None:
    for source in (strings, unknown):
        for batch in BATCHES:
            for options in ({}, {"remainder": "drop"}, {"resumable": True}):
                one, many = (
                    cluster.dataset(source, global_batch_size=batch, parse=parse, **options)
                    for parse in (parse_one, distributed.vectorized(parse_many))
                )
                assert values(one) == values(many), (batch, options)
                assert int(one.cardinality()) == int(many.cardinality()), (batch, options)
                assert one.element_spec == many.element_spec, (batch, options)
    one, many = (
        cluster.dataset(strings, global_batch_size=100, parse=parse, repeat=True)
        for parse in (parse_one, distributed.vectorized(parse_many))
    )
    assert values(one.take(40)) == values(many.take(40))
    assert one.element_spec == many.element_spec
    assert int(one.cardinality()) == int(many.cardinality()) == tf.data.INFINITE_CARDINALITY


def check_no_record_is_lost_when_they_are_shuffled() -> None:
    shuffled = cluster.dataset(
        unknown, global_batch_size=64, parse=distributed.vectorized(parse_many), shuffle=100, seed=3, resumable=True
    )
    orders = [[text for batch, _ in shuffled for text in batch["text"].numpy()] for _ in range(2)]
    assert orders[0] != orders[1]
    assert all(sorted(order, key=int) == [str(number).encode() for number in range(COUNT)] for order in orders)


def check_what_is_not_dense_is_parsed_too() -> None:
    def ragged(texts: Any) -> Any:
        return tf.strings.split(texts, "1")

    def sparse(texts: Any) -> Any:
        return tf.sparse.from_dense(tf.strings.to_number(texts, tf.int64)[:, tf.newaxis])

    for function in (ragged, sparse):
        batches = list(cluster.dataset(strings, global_batch_size=100, parse=distributed.vectorized(function)))
        assert sum(int(batch.shape[0] or batch.nrows()) for batch in batches) == COUNT


def check_elements_are_given_as_map_gives_them() -> None:
    Pair = collections.namedtuple("Pair", "a b")
    numbers = tf.data.Dataset.range(1000)
    pairs = tf.data.Dataset.zip(Pair(numbers, numbers))
    named = cluster.dataset(lambda: pairs, global_batch_size=100, parse=distributed.vectorized(lambda p: p.a + p.b))
    assert [v for batch in named for v in batch.numpy()] == [2 * number for number in range(1000)]
    dicts = numbers.map(lambda number: {"x": number, "label": -number})
    popped = cluster.dataset(
        lambda: dicts, global_batch_size=100, parse=distributed.vectorized(lambda d: (d, d.pop("label")))
    )
    assert popped.element_spec[0].keys() == {"x"}
    assert [v for _, batch in popped for v in batch.numpy()] == [-number for number in range(1000)]


def check_rows_that_are_missing_or_of_another_shape_are_refused() -> None:
    def one_less(texts: Any) -> Any:
        return tf.strings.to_number(texts)[1:]

    def of_many_shapes(texts: Any) -> Any:
        ones = tf.ones([tf.size(texts), 6])
        wide = tf.strings.to_number(texts)[0] > 0
        return tf.cond(wide, lambda: tf.reshape(ones, [-1, 2, 3]), lambda: tf.reshape(ones, [-1, 3, 2]))

    for source in (strings, unknown):
        for function, words in ((one_less, "as many rows as"), (of_many_shapes, "different shapes")):
            try:
                values(cluster.dataset(source, global_batch_size=100, parse=distributed.vectorized(function)))
            except tf.errors.InvalidArgumentError as error:
                assert words in str(error), error
            else:
                raise AssertionError(f"{words}: it went through")


def check_the_end_of_an_epoch_waits_for_no_tuner() -> None:
    """See ``_with_options``. Who has chosen keeps what was chosen."""
    assert cluster.dataset(strings, global_batch_size=10).options().autotune.enabled is False
    chosen = tf.data.Options()
    chosen.autotune.enabled = True
    for resumable in (False, True):
        kept = cluster.dataset(lambda: strings().with_options(chosen), global_batch_size=10, resumable=resumable)
        assert kept.options().autotune.enabled is True


def why_epochs_begin_anew(
    make: Callable[[], Any] = strings, steps: int | None = None, also: bool = False, **options: Any
) -> str:
    cluster.dataset(make, global_batch_size=10, **options)
    if also:
        cluster.dataset(make, global_batch_size=10)
    return cluster.training_data.training_begins(steps)


def check_an_epoch_is_gone_on_within_where_its_order_comes_again() -> None:
    def fixed() -> Any:
        return strings().shuffle(10, seed=1, reshuffle_each_iteration=False)

    why = why_epochs_begin_anew
    assert why() == why(shuffle=8, seed=1) == why(fixed) == why(unknown, shuffle=8, seed=1) == ""
    assert why(shuffle=8, resumable=True) == why(steps=COUNT // 10) == why(also=True, resumable=True) == ""
    assert "seed" in why(shuffle=8)
    assert "make_dataset shuffles" in why(lambda: strings().shuffle(8, seed=1).map(tf.identity))
    with tempfile.NamedTemporaryFile() as file:
        assert "make_dataset shuffles" in why(lambda: tf.data.TextLineDataset(tf.data.Dataset.list_files(file.name)))
    assert "at random" in why(lambda: tf.data.Dataset.sample_from_datasets([strings(), strings()], [0.5, 0.5]))
    assert "repeat=True" in why(repeat=True)
    assert "2 datasets" in why(also=True)
    assert f"steps_per_epoch=7, but the data has {COUNT // 10}" in why(steps=7)
    assert "steps_per_epoch=7" in why(unknown, steps=7)
    for refused in ({"repeat": True}, {"partition": "shuffle", "shuffle": 8}, {"steps": 7}):
        try:
            why(resumable=True, **refused)  # type: ignore[arg-type]
        except distributed.RefusedError:
            continue
        raise AssertionError(refused)


def check_ranks_that_get_other_orders_are_warned_of() -> None:
    any_order = tf.data.Options()
    any_order.deterministic = False
    with tempfile.NamedTemporaryFile() as file:
        names = tf.data.Dataset.list_files(file.name)
        for apart in (strings().shuffle(8), tf.data.TextLineDataset(names), strings().with_options(any_order)):
            assert why_apart(apart), apart
    for same in (strings(), strings().shuffle(8, seed=1), strings().map(tf.identity)):
        assert why_apart(same) == "", same


def check_an_error_names_its_cause() -> None:
    for batch in (2, 3):
        wrong = tf.data.Dataset.from_tensor_slices(["1", "2", "three", "4"])
        dataset = cluster.dataset(lambda: wrong, global_batch_size=batch, parse=distributed.vectorized(parse_many))  # noqa: B023
        try:
            values(dataset)
        except tf.errors.InvalidArgumentError as error:
            assert "three" in str(error)
        else:
            raise AssertionError("it went through")


def main() -> None:
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            check()
            print(name, "ok", flush=True)


if __name__ == "__main__":
    sys.exit(main())
