"""Write DataFrames as files for training.

Spark's executors write the files, and this process writes a manifest that lists them. A DataFrame whose content was
written before is not written again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from container.contract import rules
from container.contract.names import shown, unknown
from estimators.job.errors import BackendError, ConfigurationError, UnsupportedError
from estimators.job.inputs import normalise_uri
from estimators.records.record import jobs_folder

#: Supported formats -> their MIME types.
FORMATS = {"tfrecord": "application/x-tfrecord", "parquet": "application/x-parquet"}
#: Spark's types -> the lists of TensorFlow's Example that hold them.
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
#: The session's setting for the folder of written frames.
STORE = "spark.fleetfit.store"


def write(frame: Any, file_format: str, shards: int | None, path: str | os.PathLike[str] | None) -> str:
    """Write a frame as files, unless its content was written before.

    See :meth:`estimators.inputs.TrainingInput.from_spark` for the arguments.

    Returns:
        The path of the manifest, which lists the files. The manifest is created after all files are complete.

    Raises:
        ConfigurationError: an argument is invalid, or the format cannot hold the frame's columns.
        UnsupportedError: the frame belongs to Spark Connect, or is streaming.
        BackendError: Spark has failed.
    """
    check(frame, file_format, shards)
    folder = _folder(frame, path)
    try:
        digest, rows = _digest(frame, file_format, shards)
        manifest = folder / f"{digest}.manifest"
        if not manifest.exists():
            # Each writer has its own folder. The first writer creates the manifest, which names that writer's folder.
            files = folder / f"{digest}-{uuid.uuid4().hex[:8]}"
            _write_files(frame if shards is None else frame.repartition(shards), file_format, files, rows)
            _write_manifest(manifest, files)
    except ConfigurationError:
        raise
    except Exception as error:  # PySpark and Py4J raise a dozen kinds
        lines = [line.strip() for line in str(error).splitlines() if "Error: " in line or "Exception: " in line]
        raise BackendError(
            f"the DataFrame could not be written to {folder}: {lines[-1] if lines else error}"
        ) from error
    return str(manifest)


def check(frame: Any, file_format: str, shards: int | None) -> None:
    """Refuse a frame that cannot be written. The error names the column and the remedy.

    Raises:
        ConfigurationError: the value is not a frame, the format or the number of shards is invalid, or the frame has
            unsuitable columns. A frame needs at least one column, different column names, and column types that the
            format supports.
        UnsupportedError: the frame belongs to Spark Connect, or is streaming.
    """
    if not hasattr(frame, "sparkSession") or not hasattr(frame, "dtypes"):
        raise ConfigurationError(f"from_spark(): {shown(frame)} is not a DataFrame of Spark.")
    if file_format not in FORMATS:
        raise ConfigurationError(unknown("from_spark(format=…)", file_format, tuple(FORMATS)))
    if shards is not None:
        rules.whole(1)("from_spark(shards=…)", shards)
    if ".connect." in type(frame).__module__:
        raise UnsupportedError(
            "a DataFrame of Spark Connect cannot be a channel. Use a DataFrame of a classic session."
        )
    if frame.isStreaming:
        raise UnsupportedError("a streaming DataFrame has no end, so it cannot be a channel.")
    problems = problems_of(frame.dtypes, file_format)
    if problems:
        raise ConfigurationError(f"the DataFrame cannot be a channel: {'; '.join(problems)}.")


def problems_of(columns: Iterable[tuple[str, str]], file_format: str) -> list[str]:
    """Return the problems of a schema.

    Args:
        columns: The name and the type of each column. The types are in Spark's notation.
        file_format: The format of the files: ``tfrecord`` or ``parquet``.
    """
    columns = list(columns)
    names = [name for name, _ in columns]
    problems = ["it has no columns"] if not columns else []
    problems += [f"there are two columns {name!r}" for name in sorted({one for one in names if names.count(one) > 1})]
    for name, kind in columns:
        if kind == "void" or "map<" in kind or "variant" in kind:
            problems.append(f"column {name!r} is {kind}; cast it, or make columns of it")
        elif file_format == "tfrecord" and _list_of(kind) is None:
            problems.append(
                f"column {name!r} is {kind}, which a feature of an Example cannot hold: cast the column to a number, "
                "string, binary or an array of these types, or use format='parquet'"
            )
    return problems


def _list_of(kind: str) -> str | None:
    inner = kind[len("array<") : -1] if kind.startswith("array<") else kind
    return _LISTS.get(inner)


def _folder(frame: Any, path: Any) -> Path:
    """Return the folder for the files of frames.

    Raises:
        ConfigurationError: the path is not a folder of this machine. Or the executors are on other machines, and
            neither the argument nor the session's setting contains a path.
    """
    session, named = frame.sparkSession, "from_spark(path=…)"
    if path is None:
        path, named = session.conf.get(STORE, None), STORE
    if path is None and str(session.sparkContext.master).startswith("local"):
        return jobs_folder().parent / "frames"
    if path is None:
        raise ConfigurationError(
            f"Spark's executors are on other machines. Set the session's {STORE} to a folder that the executors and "
            "this process share, or use TrainingInput.from_spark(dataframe, path=…)."
        )
    folder = normalise_uri(path).removeprefix("file://")
    if "://" in folder:
        raise ConfigurationError(
            f"{named} is {folder!r}, which is not a folder of this machine. Write the DataFrame there with Spark's "
            "DataFrame.write, and give the same location to TrainingInput."
        )
    return Path(folder)


def _write_files(frame: Any, file_format: str, folder: Path, rows: int) -> None:
    """Make the executors write a frame's rows into files in a folder.

    Raises:
        OSError: the number of written rows differs from ``rows``, the number of counted rows.
    """
    try:
        if file_format == "parquet":
            frame.write.parquet(f"file://{folder}")
        else:
            folder.mkdir(parents=True)
            names, kinds = [name for name, _ in frame.dtypes], [str(_list_of(kind)) for _, kind in frame.dtypes]
            written = frame.rdd.mapPartitionsWithIndex(_recording(str(folder), names, kinds)).sum()
            if written != rows:
                raise OSError(
                    f"{written} rows were written, but {rows} were counted: the DataFrame differs each time it is "
                    "computed"
                )
        for file in folder.iterdir():
            if file.name.startswith((".", "_")):  # Hadoop's checksums and its _SUCCESS file
                file.unlink()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _write_manifest(manifest: Path, folder: Path) -> None:
    """Create the manifest of a folder. If another writer has created the manifest first, remove the folder."""
    entries = [{"prefix": f"{folder.as_uri()}/"}, *sorted(file.name for file in folder.iterdir())]
    part = manifest.with_name(f".{manifest.name}-{uuid.uuid4().hex}")
    part.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    try:
        os.link(part, manifest)
    except FileExistsError:
        if not os.path.samefile(part, manifest):  # on NFS, creating a link may succeed and report an error
            shutil.rmtree(folder)
    except OSError:  # on a file system without links, the last writer's manifest is used
        os.replace(part, manifest)
    finally:
        part.unlink(missing_ok=True)


def _digest(frame: Any, file_format: str, shards: int | None) -> tuple[str, int]:
    """Return a hash of a frame's content, and the frame's number of rows. The executors read the whole frame once.

    Raises:
        ConfigurationError: the frame has no rows.
    """
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
    parts = shards or frame.rdd.getNumPartitions()
    said = [frame.schema.json(), file_format, parts, row["rows"], str(row["sum"]), row["xor"]]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:32], int(row["rows"])


def _recording(folder: str, names: list[str], kinds: list[str]) -> Callable[[int, Iterable[Any]], Iterator[int]]:
    """Return a function that writes the rows of a partition as TensorFlow Examples and yields the number of rows.

    The function runs on the executors.

    Args:
        folder: The folder for the files.
        names: The names of the columns.
        kinds: The kind of list in which an Example holds the values of each column: ``int64``, ``float`` or ``bytes``.
    """

    def record(index: int, rows: Iterable[Any]) -> Iterator[int]:
        import os as system

        from pyspark import TaskContext

        system.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        system.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
        import tensorflow as tf

        count = 0
        # If a task is retried or runs twice at once, only one of its files is used.
        file, writer = f"{folder}/.part-{index:05d}-{TaskContext.get().taskAttemptId()}", None
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
            system.replace(file, f"{folder}/part-{index:05d}.tfrecord")
        yield count

    return record
