"""Define the file tree that SageMaker creates in a training container, rooted at ``SAGEMAKER_BASE_DIR``.

Source: "How Amazon SageMaker Provides Training Information" (AWS documentation) and the training toolkit's
``environment.py``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from container.contract.frozen import dataclass
from container.contract.texts import map_texts

#: SageMaker's root of the tree. A backend whose hosts are processes on one machine cannot use this folder, and
#: therefore sets ``SAGEMAKER_BASE_DIR``.
DEFAULT_BASE_DIR = "/opt/ml"
#: Matches DEFAULT_BASE_DIR as a whole path or as the beginning of a path, also inside a list of paths, a command, or a
#: URI.
_BASE_DIR = re.compile(r"(?:(?<![\w./-])|(?<=file://))/opt/ml(?![\w.-])(/checkpoints(?![\w.-]))?")

#: The channel through which SageMaker's instances get a job's code and fleetfit's toolkit. Scripts do not see this
#: channel.
CODE_CHANNEL = "fleetfit"

#: The folder beside the program of a job whose entry point is a function, and the file in this folder that shows the
#: function's imports.
FUNCTION_FOLDER, FUNCTION_IMPORTS = "fleetfit_function", "imports.py"


def rebased(value: Any, tree: MLTree) -> Any:
    """Return a JSON value in which paths below ``/opt/ml`` are replaced by paths below the root of the host's tree.

    Hosts that are processes on one machine do not use ``/opt/ml``. On such a machine, a path that SageMaker documents
    would not exist, or would belong to a different job.

    Args:
        value: A JSON value that the user has set.
        tree: The host's file tree.
    """
    return map_texts(
        value, lambda text: _BASE_DIR.sub(lambda found: tree.real_checkpoints if found[1] else str(tree.base), text)
    )


def success_text(attempt: int) -> str:
    """Return the text that fleetfit's toolkit writes into :attr:`MLTree.success_file` just before the toolkit exits.

    The text contains the number of the attempt. Therefore a file ``success`` that a script or an earlier attempt has
    written is not mistaken for this file.
    """
    return f"fleetfit: attempt {attempt} went well\n"


@dataclass(frozen=True)
class MLTree:
    """The paths in one host's file tree, which has the same layout as SageMaker's ``/opt/ml``.

    Attributes:
        base: The root of the tree.
        shared_checkpoints: The checkpoint folder that the hosts share, if the tree does not exist yet. Otherwise None,
            because an existing tree has a link to the shared folder.
    """

    base: Path
    shared_checkpoints: str | None = None

    @property
    def code(self) -> Path:
        """Return the folder of the user's extracted code, which is the working directory of the entry point."""
        return self.base / "code"

    @property
    def input(self) -> Path:
        """Return the folder that contains everything the platform provides to the job."""
        return self.base / "input"

    @property
    def config(self) -> Path:
        """Return the folder of the configuration files."""
        return self.input / "config"

    @property
    def hyperparameters_file(self) -> Path:
        """Return the path of the file with ``{name: string}``.

        The strings are JSON texts if the client is the SageMaker SDK 2.x or fleetfit.
        """
        return self.config / "hyperparameters.json"

    @property
    def resource_config_file(self) -> Path:
        """Return the path of the file with ``current_host``, ``hosts``, ``network_interface_name`` and the instance
        groups.
        """
        return self.config / "resourceconfig.json"

    @property
    def input_data_config_file(self) -> Path:
        """Return the path of the file with the settings of the channels.

        The file contains ``{channel: {TrainingInputMode, S3DistributionType, RecordWrapperType, ContentType}}``.
        """
        return self.config / "inputdataconfig.json"

    @property
    def data(self) -> Path:
        """Return the folder that contains the channels' folders."""
        return self.input / "data"

    def channel(self, name: str) -> Path:
        """Return the path of a channel's folder in File mode.

        In Pipe mode, the path of an epoch's FIFO is this path followed by ``_<epoch>``.
        """
        return self.data / name

    @property
    def model(self) -> Path:
        """Return the folder that is packed into ``model.tar.gz``."""
        return self.base / "model"

    @property
    def output(self) -> Path:
        """Return the folder of the files ``failure`` and ``success`` and of the additional outputs."""
        return self.base / "output"

    @property
    def output_data(self) -> Path:
        """Return the folder that is packed into ``output.tar.gz``."""
        return self.output / "data"

    @property
    def output_intermediate(self) -> Path:
        """Return the folder of outputs that are uploaded while the job runs."""
        return self.output / "intermediate"

    @property
    def failure_file(self) -> Path:
        """Return the path of the file with the reason for the job's failure. SageMaker shows the first 1,024
        characters.
        """
        return self.output / "failure"

    @property
    def success_file(self) -> Path:
        """Return the path of the file that the toolkit writes when the job has succeeded on this host."""
        return self.output / "success"

    @property
    def checkpoints(self) -> Path:
        """Return the folder that is synchronised with ``checkpoint_s3_uri`` while the job runs."""
        return self.base / "checkpoints"

    @property
    def real_checkpoints(self) -> str:
        """Return the real path of the checkpoint folder.

        If hosts share the folder, each host's tree has a link to the folder. A script that removes the link does not
        remove the shared folder.
        """
        return self.shared_checkpoints or os.path.realpath(self.checkpoints)

    def directories(self) -> tuple[Path, ...]:
        """Return every folder that must exist before the training process starts."""
        return (
            self.code,
            self.config,
            self.data,
            self.model,
            self.output_data,
            self.output_intermediate,
            self.checkpoints,
        )
