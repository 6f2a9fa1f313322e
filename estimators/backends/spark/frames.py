"""Channels that are DataFrames: Spark's executors write them to files, once for each content."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from container.contract.names import shown
from estimators.job.errors import BackendError, ConfigurationError, UnsupportedError
from estimators.job.inputs import TrainingInput, normalise_uri
from estimators.records.record import jobs_folder

#: What can be written: a file of each partition.
FORMATS = {"tfrecord": "application/x-tfrecord", "parquet": "application/x-parquet"}
#: Spark's types, and what they are in an Example of TensorFlow's.
_LISTS = {
    "boolean": "int64",
    "tinyint": "int64",
    "smallint": "int64",
    "int": "int64",
    "bigint": "int64",
    "float": "float",
    "double": "float",
    "string": "bytes",
    "binary": "bytes",
}
#: The setting of a session that says where frames go.
STORE = "spark.fleetfit.store"


class DataFrameInput:
    """A DataFrame of Spark as a channel: its executors write a file of each partition.

    What has been written is known by its content (rows in any order, schema, number of partitions), and not written
    again. Writing happens when the channel is first needed: in ``fit()``, and in ``plan()``, which names its files.

    Args:
        dataframe: The frame, of a classic session.
        store: The folder for frames: a path that all executors and this process see, or for Parquet a URI of Hadoop's
            (``s3://…``). Default: the session's ``spark.fleetfit.store``; with ``local`` masters, a folder beside the
            jobs' records.
        file_format: ``"tfrecord"``: Examples of TensorFlow's, a feature for each column, which needs TensorFlow on the
            executors; or ``"parquet"``.
        distribution: ``"ShardedByS3Key"``: each host has its share of the partitions; ``"FullyReplicated"``: all.
        arguments: More of a :class:`TrainingInput`.

    Raises:
        ConfigurationError: it is no DataFrame, or a format that there is not.
    """

    def __init__(
        self,
        dataframe: Any,
        *,
        store: str | os.PathLike[str] | None = None,
        file_format: str = "tfrecord",
        distribution: str = "ShardedByS3Key",
        **arguments: Any,
    ) -> None:
        if not hasattr(dataframe, "sparkSession") or not hasattr(dataframe, "dtypes"):
            raise ConfigurationError(f"DataFrameInput: {shown(dataframe)} is no DataFrame of Spark.")
        if file_format not in FORMATS:
            raise ConfigurationError(
                f"DataFrameInput(file_format={shown(file_format)}): it is one of {', '.join(FORMATS)}."
            )
        self._frame = dataframe
        self._store = normalise_uri(store) if store is not None else None
        self._format = file_format
        self._arguments = {"distribution": distribution, "content_type": FORMATS[file_format], **arguments}
        self._config: dict[str, Any] | None = None

    def __repr__(self) -> str:
        columns = ", ".join(f"{name}: {kind}" for name, kind in self._frame.dtypes)
        return f"DataFrameInput([{columns}], file_format={self._format!r})"

    @property
    def config(self) -> dict[str, Any]:
        """The channel as ``CreateTrainingJob`` has it, without its name; its files are written first.

        Raises:
            ConfigurationError: what the frame has cannot be written.
            UnsupportedError: it is of Spark Connect, or streams.
            BackendError: Spark has failed.
        """
        if self._config is None:
            self._config = TrainingInput(self._written(), **self._arguments).config
        return self._config

    def _written(self) -> str:
        check(self._frame, self._format)
        store = self._store or _default_store(self._frame.sparkSession)
        if self._format == "tfrecord" and "://" in store and not store.startswith("file://"):
            raise UnsupportedError(
                f"DataFrameInput: TFRecords are written to a path that all executors see, and {store!r} is none; take "
                "file_format='parquet', or another store."
            )
        try:
            return _write(self._frame, store, self._format)
        except (ConfigurationError, UnsupportedError):
            raise
        except Exception as error:
            lines = [line.strip() for line in str(error).splitlines() if "Error: " in line or "Exception: " in line]
            reason = lines[-1] if lines else str(error)
            raise BackendError(f"the DataFrame could not be written to {store}: {reason}") from error


def config_of(dataframe: Any) -> Mapping[str, Any]:
    """Return the channel of a DataFrame for which nothing else is said."""
    return DataFrameInput(dataframe).config


def check(frame: Any, file_format: str) -> None:
    """Refuse what cannot be written, with the column and the remedy.

    Raises:
        ConfigurationError: no columns, two of one name, or one whose type the format does not have.
        UnsupportedError: a frame of Spark Connect, or one that streams.
    """
    if ".connect." in type(frame).__module__:
        raise UnsupportedError("a DataFrame of Spark Connect cannot be a channel; take one of a classic session.")
    if frame.isStreaming:
        raise UnsupportedError("a DataFrame that streams has no end, and cannot be a channel.")
    problems = problems_of(frame.dtypes, file_format)
    if problems:
        raise ConfigurationError(f"the DataFrame cannot be a channel: {'; '.join(problems)}.")


def problems_of(columns: Iterable[tuple[str, str]], file_format: str) -> list[str]:
    """Return what is wrong with a schema: each column's name, and its type in Spark's words."""
    columns = list(columns)
    names = [name for name, _ in columns]
    problems = ["it has no columns"] if not columns else []
    problems += [f"there are two columns {name!r}" for name in sorted({one for one in names if names.count(one) > 1})]
    for name, kind in columns:
        if kind == "void" or "map<" in kind or "variant" in kind:
            problems.append(f"column {name!r} is {kind}; cast it, or make columns of it")
        elif file_format == "tfrecord" and _list_of(kind) is None:
            problems.append(
                f"column {name!r} is {kind}, which no feature of an Example can be; cast it to a number, string, "
                "binary or an array of them, or take file_format='parquet'"
            )
    return problems


def _list_of(kind: str) -> str | None:
    inner = kind[len("array<") : -1] if kind.startswith("array<") else kind
    return _LISTS.get(inner)


def _default_store(session: Any) -> str:
    store = session.conf.get(STORE, None)
    if store:
        return normalise_uri(store)
    if str(session.sparkContext.master).startswith("local"):
        return str(jobs_folder().parent / "frames")
    raise ConfigurationError(
        "the DataFrame is to be written by executors on other machines, and nobody says where: set the session's "
        f"{STORE} to a folder that they and this process see, or take DataFrameInput(dataframe, store=…)."
    )


def _write(frame: Any, store: str, file_format: str) -> str:
    """Write a frame, if its content is not there; return where."""
    context = frame.sparkSession.sparkContext
    jvm = context._jvm
    location = f"{store.rstrip('/')}/{_digest(frame, file_format)}"
    # Amazon's scheme is Hadoop's s3a; a path is a file's.
    there = location.replace("s3://", "s3a://", 1) if "://" in location else f"file://{location}"
    folder, name = there.rsplit("/", 1)
    path = jvm.org.apache.hadoop.fs.Path
    files = path(there).getFileSystem(context._jsc.hadoopConfiguration())
    if there.startswith("file://"):
        files = files.getRawFileSystem()  # which sees the checksums that Hadoop writes beside files
    if files.exists(path(there)):
        return location
    part = f"{folder}/.{name}-{uuid.uuid4().hex}"
    try:
        if file_format == "parquet":
            frame.write.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(part)
        else:
            target = part.removeprefix("file://")
            Path(target).mkdir(parents=True)
            names = [name for name, _ in frame.dtypes]
            frame.rdd.mapPartitionsWithIndex(_recording(target, names, _kinds(frame))).sum()
        for status in files.listStatus(path(part)):
            if status.getPath().getName().startswith((".", "_")):
                files.delete(status.getPath(), True)
        files.mkdirs(path(folder))
        if not files.exists(path(there)):  # another process may have been quicker
            files.rename(path(part), path(there))
            files.delete(path(f"{there}/{part.rsplit('/', 1)[1]}"), True)  # and even meanwhile
        if not files.exists(path(there)):
            raise OSError("it could not be put in its place")
    finally:
        files.delete(path(part), True)
    return location


def _kinds(frame: Any) -> list[str]:
    return [str(_list_of(kind)) for _, kind in frame.dtypes]


def _digest(frame: Any, file_format: str) -> str:
    """Return what names a frame's content: it is read once for that, by the executors."""
    from pyspark.sql import functions

    hashed = functions.xxhash64(*(frame[f"`{name.replace('`', '``')}`"] for name, _ in frame.dtypes))
    found = frame.select(hashed.alias("hash")).agg(
        functions.count("*").alias("rows"),
        functions.sum(functions.col("hash").cast("decimal(38,0)")).alias("sum"),
        functions.expr("bit_xor(hash)").alias("xor"),
    )
    row = found.collect()[0]
    if not row["rows"]:
        raise ConfigurationError("the DataFrame has no rows.")
    said = [frame.schema.json(), file_format, frame.rdd.getNumPartitions(), row["rows"], str(row["sum"]), row["xor"]]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32]


def _recording(folder: str, names: list[str], kinds: list[str]) -> Callable[[int, Iterable[Any]], Iterator[int]]:
    """Return what an executor does with a partition: it writes its rows as Examples, and says how many there were."""

    def record(index: int, rows: Iterable[Any]) -> Iterator[int]:
        import os as system

        system.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        system.environ["CUDA_VISIBLE_DEVICES"] = ""
        import tensorflow as tf

        count = 0
        file, writer = f"{folder}/part-{index:05d}.tfrecord", None
        for row in rows:
            features = {}
            for name, kind, value in zip(names, kinds, row, strict=True):
                values = [] if value is None else value if isinstance(value, list | tuple) else [value]
                if kind == "bytes":
                    encoded = [one.encode() if isinstance(one, str) else bytes(one) for one in values]
                    features[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=encoded))
                elif kind == "float":
                    features[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
                else:
                    features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=[int(one) for one in values]))
            writer = writer or tf.io.TFRecordWriter(file)
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
            count += 1
        if writer is not None:
            writer.close()
        yield count

    return record
