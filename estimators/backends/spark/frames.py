"""Write DataFrames for training: Spark's executors write files and a manifest of them, once for each content."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from container.contract.names import shown, unknown
from estimators.job.errors import BackendError, ConfigurationError, UnsupportedError
from estimators.job.inputs import normalise_uri
from estimators.records.record import jobs_folder

#: What can be written, and its MIME type.
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


def write(frame: Any, file_format: str, shards: int | None, path: str | os.PathLike[str] | None) -> str:
    """Write a frame, unless its content is there; see :meth:`estimators.inputs.TrainingInput.from_spark`.

    Returns:
        The manifest, which lists the files. It appears when all of them are there.

    Raises:
        ConfigurationError: an argument is wrong, or the frame has something that the format has not.
        UnsupportedError: the frame is of Spark Connect, or streams.
        BackendError: Spark has failed.
    """
    check(frame, file_format, shards)
    folder = _folder(frame, path)
    try:
        digest, rows = _digest(frame, file_format, shards)
        manifest = folder / f"{digest}.manifest"
        if not manifest.exists():
            # Each writer has a folder of its own; which of them counts the manifest says, and that is the first one's.
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
    """Refuse what cannot be written, with the column and the remedy.

    Raises:
        ConfigurationError: it is no frame, has no columns, two of one name, or one whose type the format does not
            have; or there is no such format or number of shards.
        UnsupportedError: a frame of Spark Connect, or one that streams.
    """
    if not hasattr(frame, "sparkSession") or not hasattr(frame, "dtypes"):
        raise ConfigurationError(f"from_spark(): {shown(frame)} is not a DataFrame of Spark.")
    if file_format not in FORMATS:
        raise ConfigurationError(unknown("from_spark(format=…)", file_format, tuple(FORMATS)))
    if shards is not None and (isinstance(shards, bool) or not isinstance(shards, int) or shards < 1):
        raise ConfigurationError(f"from_spark(shards=…) must be a whole number, at least 1, got {shown(shards)}.")
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
                f"column {name!r} is {kind}, which a feature of an Example cannot hold: cast the column to a number, "
                "string, binary or an array of these types, or use format='parquet'"
            )
    return problems


def _list_of(kind: str) -> str | None:
    inner = kind[len("array<") : -1] if kind.startswith("array<") else kind
    return _LISTS.get(inner)


def _folder(frame: Any, path: Any) -> Path:
    """Return where frames go.

    Raises:
        ConfigurationError: it is no folder of this machine, or nobody says where.
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
    """Have the executors write a folder.

    Raises:
        OSError: they have not written as many rows as the frame had.
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
            if file.name.startswith((".", "_")):  # Hadoop's checksums, and its sign of success
                file.unlink()
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _write_manifest(manifest: Path, folder: Path) -> None:
    """Have a folder counted, or removed where another writer was quicker."""
    entries = [{"prefix": f"{folder.as_uri()}/"}, *sorted(file.name for file in folder.iterdir())]
    part = manifest.with_name(f".{manifest.name}-{uuid.uuid4().hex}")
    part.write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    try:
        os.link(part, manifest)
    except FileExistsError:
        if not os.path.samefile(part, manifest):  # on NFS a link that was made may be reported as an error
            shutil.rmtree(folder)
    except OSError:  # there are file systems without links, on which the last one counts
        os.replace(part, manifest)
    finally:
        part.unlink(missing_ok=True)


def _digest(frame: Any, file_format: str, shards: int | None) -> tuple[str, int]:
    """Return what names a frame's content, and its rows: it is read once for that, by the executors."""
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
    """Return what an executor does with a partition: it writes its rows as Examples, and says how many there were."""

    def record(index: int, rows: Iterable[Any]) -> Iterator[int]:
        import os as system

        from pyspark import TaskContext

        system.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        system.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
        import tensorflow as tf

        count = 0
        # Of a task that is tried again, or twice at once, one file counts.
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
