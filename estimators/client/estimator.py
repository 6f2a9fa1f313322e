"""The estimators that users make. The stub beside this module has their arguments with types, for editors."""

from __future__ import annotations

from estimators.client.estimator_base import EstimatorBase
from estimators.job.arguments import Owner


class Estimator(EstimatorBase):
    """Trains: takes the arguments of the SageMaker SDK 2.x, starts training jobs, and keeps their handles.

    Names, meanings and defaults are those of the SDK; ``docs/sagemaker-arguments.md`` lists every argument and all
    differences. Names of the SDK 1.x still work, with a DeprecationWarning. Arguments can be read and set as
    attributes; setting one checks the value as the constructor does.

    Args:
        image_uri: The container image. Jobs are named after it; processes of this machine do not use it.
        role: IAM role of jobs on SageMaker.
        instance_count: Number of hosts.
        instance_type: Where to run: processes of this machine (the default), ``local`` or ``local_gpu`` (containers on
            this machine), ``ml.*`` (Amazon SageMaker), or one of the other backends.
        **arguments: All other arguments, such as

            - ``entry_point``: the script (``.py``, ``.sh``), module (``pkg.module``) or folder with a ``__main__.py``;
              relative to ``source_dir`` if this is given;
            - ``source_dir``, ``dependencies``: the folder with the code, and additional files and folders. Each job
              keeps a copy. A ``requirements.txt`` at the top of ``source_dir`` is installed for the job, never into
              this environment;
            - ``hyperparameters``: become arguments of the script; values keep their types;
            - ``arguments``: more arguments of the script, passed unchanged: ``["--fp16", "--layers", "64", "32"]``;
            - ``distribution``: the strategy, ``MPI(processes_per_host=2)`` or SageMaker's dict
              ``{"mpi": {"enabled": True, "processes_per_host": 2}}``;
            - ``environment``: environment variables for the script;
            - ``output_path``: a path, ``file://`` or ``s3://`` URI. The model is saved as
              ``<output_path>/<job>/output/model.tar.gz``. Default: the folder of the job's record;
            - ``checkpoint_s3_uri``: where checkpoints are kept: an S3 URI or a path;
            - ``max_run``: seconds after which the job is stopped (default: 86,400);
            - ``metric_definitions``: ``[{"Name": "loss", "Regex": "loss: ([0-9.]+)"}]``;
            - ``base_job_name``: jobs are named ``<base>-<time>``;
            - ``sagemaker_session``: a session of boto3 or of the SageMaker SDK.

    Raises:
        ConfigurationError: an argument is wrong (this error is also a ValueError).
        ArgumentNameError: there is no such argument (this error is also a TypeError).
        UnsupportedError: the argument is not available; the message says why.

    Attributes:
        latest_training_job: The handle of the last job, or None.
        jobs: The handles of all jobs that this estimator started.
    """

    _owners = (Owner.ESTIMATOR,)
    _positional = ("image_uri", "role", "instance_count", "instance_type")


class TensorFlow(Estimator):
    """Trains TensorFlow scripts; see :class:`Estimator` for the arguments that all estimators take.

    Args:
        py_version: The desired Python version. Processes of this machine run the Python of this process, and warn if
            the versions differ.
        framework_version: The desired TensorFlow version. Processes of this machine run the installed version, and warn
            if the versions differ.
        model_dir: The value that the script gets as ``--model_dir``. Default: ``/opt/ml/model`` with MPI, else
            ``<output_path>/<job>/model``. False: the script gets no ``--model_dir``.
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
    """Trains PyTorch scripts; see :class:`Estimator` for the arguments that all estimators take.

    Args:
        entry_point: The script.
        framework_version: The desired PyTorch version. Processes of this machine run the installed version, and warn if
            the versions differ.
        py_version: The desired Python version. Processes of this machine run the Python of this process, and warn if
            the versions differ.
        source_dir: The folder with the code.
        hyperparameters: Become arguments of the script.
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
