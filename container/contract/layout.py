"""The file tree that SageMaker gives a training container, rooted at ``SAGEMAKER_BASE_DIR``.

Source: "How Amazon SageMaker Provides Training Information" (AWS documentation) and the training toolkit's
``environment.py``.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Where SageMaker puts the tree. A backend that cannot use it (processes on one machine) sets ``SAGEMAKER_BASE_DIR``.
DEFAULT_BASE_DIR = "/opt/ml"
#: That as a path of its own, or the beginning of one: also in a list of paths, a command, or a URI.
_BASE_DIR = re.compile(r"(?:(?<![\w./-])|(?<=file://))/opt/ml(?![\w.-])(/checkpoints(?![\w.-]))?")

#: The channel by which a job's code and our toolkit come where they cannot come otherwise; scripts do not see it.
CODE_CHANNEL = "fleetfit"

#: The folder beside the program of a job whose entry point is a function.
FUNCTION_FOLDER = "fleetfit_function"


def rebased(value: Any, tree: MLTree) -> Any:
    """Return a JSON value whose texts name a host's own paths in place of those below ``/opt/ml``.

    Where the tree is somewhere else (processes on one machine), SageMaker's documented paths would not exist, or be
    another job's.

    Args:
        value: What the user gave.
        tree: The host's.
    """
    if isinstance(value, str):
        return _BASE_DIR.sub(lambda found: tree.real_checkpoints if found[1] else str(tree.base), value)
    if isinstance(value, Mapping):
        return {name: rebased(item, tree) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [rebased(item, tree) for item in value]
    return value


def success_text(attempt: int) -> str:
    """Return what our toolkit writes into :attr:`MLTree.success_file` as its last act; neither a script nor an earlier
    attempt can have written it.
    """
    return f"fleetfit: attempt {attempt} went well\n"


@dataclasses.dataclass(frozen=True)
class MLTree:
    """The paths of one host's ``/opt/ml``.

    Attributes:
        base: Its root.
        shared_checkpoints: The folder that hosts share, where the tree is only planned and has no link to it yet.
    """

    base: Path
    shared_checkpoints: str | None = None

    @property
    def code(self) -> Path:
        """The user's code, extracted; the working directory of the entry point."""
        return self.base / "code"

    @property
    def input(self) -> Path:
        """Everything that the platform gives to the job."""
        return self.base / "input"

    @property
    def config(self) -> Path:
        """The configuration files."""
        return self.input / "config"

    @property
    def hyperparameters_file(self) -> Path:
        """``{name: string}``, the strings being JSON where the client was the SageMaker SDK 2.x or fleetfit."""
        return self.config / "hyperparameters.json"

    @property
    def resource_config_file(self) -> Path:
        """``current_host``, ``hosts``, ``network_interface_name``, instance groups."""
        return self.config / "resourceconfig.json"

    @property
    def input_data_config_file(self) -> Path:
        """``{channel: {TrainingInputMode, S3DistributionType, RecordWrapperType, ContentType}}``."""
        return self.config / "inputdataconfig.json"

    @property
    def data(self) -> Path:
        """The folder of the channels."""
        return self.input / "data"

    def channel(self, name: str) -> Path:
        """Return a channel's folder in File mode; in Pipe mode this path plus ``_<epoch>`` is the FIFO."""
        return self.data / name

    @property
    def model(self) -> Path:
        """What ends up in ``model.tar.gz``."""
        return self.base / "model"

    @property
    def output(self) -> Path:
        """Outcome files and the extra outputs."""
        return self.base / "output"

    @property
    def output_data(self) -> Path:
        """What ends up in ``output.tar.gz``."""
        return self.output / "data"

    @property
    def output_intermediate(self) -> Path:
        """Outputs that are uploaded while the job runs."""
        return self.output / "intermediate"

    @property
    def failure_file(self) -> Path:
        """Why the job failed; SageMaker shows its first 1,024 characters."""
        return self.output / "failure"

    @property
    def success_file(self) -> Path:
        """Written when the host's share ended well."""
        return self.output / "success"

    @property
    def checkpoints(self) -> Path:
        """Synchronised with ``checkpoint_s3_uri`` while the job runs."""
        return self.base / "checkpoints"

    @property
    def real_checkpoints(self) -> str:
        """That folder itself: hosts that share it have a link to it in their trees, which no script can remove."""
        return self.shared_checkpoints or os.path.realpath(self.checkpoints)

    def directories(self) -> tuple[Path, ...]:
        """Every folder that must exist before the training process starts."""
        return (
            self.code,
            self.config,
            self.data,
            self.model,
            self.output_data,
            self.output_intermediate,
            self.checkpoints,
        )
