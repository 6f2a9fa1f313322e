"""Define the estimator classes for users: ``Estimator``, ``TensorFlow`` and ``PyTorch``.

The stub file next to this module (``.pyi``) lists the arguments and their types for editors.
"""

from __future__ import annotations

from estimators.client.estimator_base import EstimatorBase
from estimators.job.arguments import Owner


class Estimator(EstimatorBase):
    """A training configuration with the arguments of the SageMaker SDK 2.x.

    An estimator starts training jobs with ``fit()``, and keeps a handle of each job. Arguments have the same names,
    meanings and defaults as in the SageMaker SDK. ``docs/sagemaker-arguments.md`` lists every argument and all
    differences. Names of the SageMaker SDK 1.x still work, with a DeprecationWarning. Arguments can be read and set as
    attributes, such as ``estimator.instance_count = 4``. An assignment checks the value as the constructor does.

    Args:
        image_uri: The container image. Without ``base_job_name``, jobs are named after the image. Hosts that are
            processes of this machine do not use the image.
        role: The IAM role of jobs on SageMaker.
        instance_count: The number of hosts.
        instance_type: The kind of hosts. By default, each host is a group of processes of this machine. With ``local``
            and ``local_gpu``, hosts are containers on this machine. With ``ml.*``, jobs run on Amazon SageMaker. Every
            other backend, such as ``ssh`` or ``slurm``, has its own name.
        **arguments: All other arguments, such as

            - ``entry_point``: The script (``.py``, ``.sh``), the module (``pkg.module``) or the folder with a
              ``__main__.py``. The path is relative to ``source_dir`` if ``source_dir`` is given.
            - ``source_dir``, ``dependencies``: The folder with the code, and additional files and folders. Each job
              keeps a copy of all these files. The packages in a ``requirements.txt`` at the top of ``source_dir`` are
              installed for the job only, never into the Python environment of this process.
            - ``hyperparameters``: Values that the script receives as arguments. The values keep their types.
            - ``arguments``: More arguments of the script, such as ``["--fp16", "--layers", "64", "32"]``. These
              arguments are passed unchanged.
            - ``distribution``: The strategy, such as ``MPI(processes_per_host=2)`` or SageMaker's dict ``{"mpi":
              {"enabled": True, "processes_per_host": 2}}``.
            - ``environment``: Environment variables for the script.
            - ``output_path``: A path, ``file://`` or ``s3://`` URI. The model is saved as
              ``<output_path>/<job>/output/model.tar.gz``. The default is the folder of the job's record.
            - ``checkpoint_s3_uri``: The S3 URI or the path of the folder for checkpoints.
            - ``max_run``: The time after which the job is stopped, in seconds. The default is 86,400.
            - ``metric_definitions``: The metrics to find in the output, such as ``[{"Name": "loss", "Regex": "loss:
              ([0-9.]+)"}]``.
            - ``base_job_name``: The first part of job names. Jobs are named ``<base>-<time>``.
            - ``sagemaker_session``: A session of boto3 or of the SageMaker SDK.

    Raises:
        ConfigurationError: an argument is wrong (this error is also a ValueError).
        ArgumentNameError: an argument does not exist (this error is also a TypeError).
        UnsupportedError: an argument is not available. The message gives the reason.

    Attributes:
        latest_training_job: The handle of the last job, or None before the first job.
        jobs: The handles of all jobs that this estimator started.
    """

    _owners = (Owner.ESTIMATOR,)
    _positional = ("image_uri", "role", "instance_count", "instance_type")


class TensorFlow(Estimator):
    """An estimator for TensorFlow scripts. :class:`Estimator` describes the arguments of all estimators.

    Args:
        py_version: The desired Python version. Hosts that are processes of this machine use the Python version of this
            process. A warning is given if the two versions differ.
        framework_version: The desired TensorFlow version. Hosts that are processes of this machine use the installed
            version. A warning is given if the two versions differ.
        model_dir: The value of the script's argument ``--model_dir``. The default is ``/opt/ml/model`` with MPI, and
            ``<output_path>/<job>/model`` with other strategies. With False, the script receives no ``--model_dir``.
        image_uri: The container image.
        distribution: The strategy.
        **arguments: The other arguments, as for :class:`Estimator`.
    """

    _owners = (Owner.ESTIMATOR, Owner.FRAMEWORK, Owner.TENSORFLOW)
    _positional = ("py_version", "framework_version", "model_dir", "image_uri", "distribution")
    _job_base = "tensorflow-training"
    _passes_model_dir = True
    _framework = "tensorflow"


class PyTorch(Estimator):
    """An estimator for PyTorch scripts. :class:`Estimator` describes the arguments of all estimators.

    Args:
        entry_point: The script.
        framework_version: The desired PyTorch version. Hosts that are processes of this machine use the installed
            version. A warning is given if the two versions differ.
        py_version: The desired Python version. Hosts that are processes of this machine use the Python version of this
            process. A warning is given if the two versions differ.
        source_dir: The folder with the code.
        hyperparameters: Values that the script receives as arguments.
        image_uri: The container image.
        distribution: The strategy. ``TorchDistributed(processes_per_host=2)`` or SageMaker's ``{"torch_distributed":
            {"enabled": True}}`` starts the script as torchrun does. ``ElasticTorchDistributed(…)`` also allows hosts to
            join and leave. ``MPI(…)`` and ``ElasticHorovod(…)`` are for scripts with ``horovod.torch``.
        **arguments: The other arguments, as for :class:`Estimator`.
    """

    _owners = (Owner.ESTIMATOR, Owner.FRAMEWORK)
    _positional = (
        "entry_point", "framework_version", "py_version", "source_dir", "hyperparameters", "image_uri", "distribution",
    )  # fmt: skip
    _job_base = "pytorch-training"
    _framework = "torch"
