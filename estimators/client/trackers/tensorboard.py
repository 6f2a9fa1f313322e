"""Define a callback that writes the metrics of jobs to event files, which TensorBoard displays."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from container.contract.names import suggests_arguments
from estimators.client.trackers.base import TrackedRun, TrackedValue, Tracker, parameters_of, user_folder
from estimators.job.errors import ConfigurationError

if TYPE_CHECKING:
    from estimators.client.training_job import TrainingJob


@suggests_arguments
class TensorBoardCallback(Tracker):
    """A callback that writes the metrics and hyperparameters of each job for TensorBoard. Each job has its own folder.

    Use this callback for scripts that do not write event files themselves, and for metrics that ``metric_definitions``
    find in the logs.

    Args:
        folder: The folder that contains the jobs' folders.
        **options: Options of :class:`~estimators.client.trackers.base.Tracker`.
    """

    title = "TensorBoard"
    library = "tensorboard"
    extra = "tensorboard"

    def __init__(
        self, folder: str | os.PathLike[str] = "runs", *, ranks: str = "first", patience: float = 30.0
    ) -> None:
        super().__init__(ranks=ranks, patience=patience)
        self._folder = user_folder(folder)
        if os.path.exists(self._folder) and not os.path.isdir(self._folder):
            raise ConfigurationError(f"TensorBoardCallback(folder=…): {self._folder} is not a folder.")

    def place(self) -> str:
        """Return the folder that contains the jobs' folders."""
        return self._folder

    def open(self, job: TrainingJob, run: str | None, parent: str | None) -> _EventFileRun:
        """Create an event file for the job. A resumed job has several event files."""
        folder = os.path.join(self._folder, *([parent] if parent else []), job.name)
        os.makedirs(folder, exist_ok=True)
        opened = _EventFileRun(folder)
        if run is None:
            opened.describe(parameters_of(job))
        return opened

    def open_study(self, name: str, run: str | None) -> str | None:
        """Return the tuning job's name, which is the name of the folder that contains the trials' folders."""
        return name


class _EventFileRun(TrackedRun):
    """An open event file.

    The file is written with TensorBoard's ``RecordWriter``. TensorBoard's ``EventFileWriter`` is not used, because it
    imports TensorFlow if TensorFlow is installed.
    """

    def __init__(self, folder: str) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        now = time.time()
        name = f"events.out.tfevents.{int(now)}.{os.uname().nodename}.{os.getpid()}.{time.monotonic_ns()}"
        self._file = open(os.path.join(folder, name), "xb")  # noqa: SIM115 - finish() closes the file
        self._writer = RecordWriter(self._file)
        self.id = folder
        self._write(Event(wall_time=now, file_version="brain.Event:2"))
        self._file.flush()

    def _write(self, event: Any) -> None:
        self._writer.write(event.SerializeToString())

    def describe(self, parameters: dict[str, str]) -> None:
        """Write the hyperparameters as a Markdown table, which TensorBoard shows on its page for texts."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.compat.proto.types_pb2 import DT_STRING

        rows = "".join(f"| {name} | {value} |\n" for name, value in parameters.items())
        text = f"| hyperparameter | value |\n|---|---|\n{rows}"
        metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
        tensor = TensorProto(dtype=DT_STRING, string_val=[text.encode()])
        value = Summary.Value(tag="hyperparameters", metadata=metadata, tensor=tensor)
        self._write(Event(summary=Summary(value=[value]), wall_time=time.time()))

    def log(self, points: Sequence[TrackedValue]) -> None:
        """Write values of metrics."""
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        for point in points:
            value = Summary.Value(tag=point.name, simple_value=point.value)
            self._write(Event(summary=Summary(value=[value]), step=point.step, wall_time=point.time))
        self._file.flush()

    def finish(self, status: str, model: Path | None) -> None:
        """Close the event file."""
        self._file.close()
