# Written by tests/support/signatures.py from the table in estimators/job/arguments.py.
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from container.contract.strategies import Distribution
from estimators.client.estimator_base import EstimatorBase
from estimators.job.request import RunOptions

class Estimator(EstimatorBase):
    arguments: Sequence[str | os.PathLike[str]] | None
    base_job_name: str | None
    capture_limit: int
    checkpoint_local_path: str | os.PathLike[str] | None
    checkpoint_s3_uri: str | os.PathLike[str] | None
    code_location: str | None
    container_arguments: Sequence[str] | None
    container_entry_point: Sequence[str] | None
    container_log_level: int
    dependencies: Sequence[str | os.PathLike[str]] | None
    disable_output_compression: bool
    distribution: Distribution | Mapping[str, Any] | None
    enable_infra_check: bool | None
    enable_network_isolation: bool | None
    enable_remote_debug: bool | None
    enable_sagemaker_metrics: bool | None
    enable_session_tag_chaining: bool | None
    encrypt_inter_container_traffic: bool | None
    entry_point: str | os.PathLike[str] | Callable[..., Any] | None
    environment: Mapping[str, str] | None
    hang_timeout: float | None
    image_uri: str | None
    input_mode: str
    instance_count: int
    instance_placement_config: Mapping[str, Any] | None
    instance_type: str
    keep_alive_period_in_seconds: int | None
    max_retry_attempts: int | None
    max_run: int
    max_wait: int | None
    metric_definitions: Sequence[Mapping[str, str]] | None
    model_channel_name: str
    model_uri: str | os.PathLike[str] | None
    output_kms_key: str | None
    output_path: str | os.PathLike[str] | None
    role: str | None
    run_options: RunOptions
    sagemaker_session: Any
    security_group_ids: Sequence[str] | None
    source_dir: str | os.PathLike[str] | None
    subnets: Sequence[str] | None
    tags: Sequence[Mapping[str, str]] | Mapping[str, str] | None
    training_plan: str | None
    training_repository_access_mode: str | None
    training_repository_credentials_provider_arn: str | None
    use_spot_instances: bool
    volume_kms_key: str | None
    volume_size: int
    def __init__(
        self,
        image_uri: str | None = None,
        role: str | None = None,
        instance_count: int = 1,
        instance_type: str = "local_process",
        *,
        keep_alive_period_in_seconds: int | None = None,
        volume_size: int = 30,
        volume_kms_key: str | None = None,
        training_plan: str | None = None,
        instance_placement_config: Mapping[str, Any] | None = None,
        entry_point: str | os.PathLike[str] | Callable[..., Any] | None = None,
        source_dir: str | os.PathLike[str] | None = None,
        dependencies: Sequence[str | os.PathLike[str]] | None = ...,
        code_location: str | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        container_log_level: int = 20,
        container_entry_point: Sequence[str] | None = None,
        container_arguments: Sequence[str] | None = None,
        training_repository_access_mode: str | None = None,
        training_repository_credentials_provider_arn: str | None = None,
        input_mode: str = "File",
        model_uri: str | os.PathLike[str] | None = None,
        model_channel_name: str = "model",
        output_path: str | os.PathLike[str] | None = None,
        output_kms_key: str | None = None,
        disable_output_compression: bool = False,
        max_run: int = 86400,
        use_spot_instances: bool = False,
        max_wait: int | None = None,
        max_retry_attempts: int | None = None,
        checkpoint_s3_uri: str | os.PathLike[str] | None = None,
        checkpoint_local_path: str | os.PathLike[str] | None = None,
        metric_definitions: Sequence[Mapping[str, str]] | None = ...,
        enable_sagemaker_metrics: bool | None = None,
        enable_remote_debug: bool | None = None,
        subnets: Sequence[str] | None = None,
        security_group_ids: Sequence[str] | None = None,
        encrypt_inter_container_traffic: bool | None = None,
        enable_network_isolation: bool | None = None,
        enable_infra_check: bool | None = None,
        enable_session_tag_chaining: bool | None = None,
        distribution: Distribution | Mapping[str, Any] | None = None,
        base_job_name: str | None = None,
        sagemaker_session: Any = None,
        tags: Sequence[Mapping[str, str]] | Mapping[str, str] | None = ...,
        arguments: Sequence[str | os.PathLike[str]] | None = None,
        hang_timeout: float | None = None,
        capture_limit: int = 10000000,
        run_options: RunOptions = ...,
    ) -> None: ...

class TensorFlow(Estimator):
    framework_version: str | None
    model_dir: str | os.PathLike[str] | Literal[False] | None
    py_version: str | None
    def __init__(
        self,
        py_version: str | None = None,
        framework_version: str | None = None,
        model_dir: str | os.PathLike[str] | Literal[False] | None = None,
        image_uri: str | None = None,
        distribution: Distribution | Mapping[str, Any] | None = None,
        *,
        role: str | None = None,
        instance_count: int = 1,
        instance_type: str = "local_process",
        keep_alive_period_in_seconds: int | None = None,
        volume_size: int = 30,
        volume_kms_key: str | None = None,
        training_plan: str | None = None,
        instance_placement_config: Mapping[str, Any] | None = None,
        entry_point: str | os.PathLike[str] | Callable[..., Any] | None = None,
        source_dir: str | os.PathLike[str] | None = None,
        dependencies: Sequence[str | os.PathLike[str]] | None = ...,
        code_location: str | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        container_log_level: int = 20,
        container_entry_point: Sequence[str] | None = None,
        container_arguments: Sequence[str] | None = None,
        training_repository_access_mode: str | None = None,
        training_repository_credentials_provider_arn: str | None = None,
        input_mode: str = "File",
        model_uri: str | os.PathLike[str] | None = None,
        model_channel_name: str = "model",
        output_path: str | os.PathLike[str] | None = None,
        output_kms_key: str | None = None,
        disable_output_compression: bool = False,
        max_run: int = 86400,
        use_spot_instances: bool = False,
        max_wait: int | None = None,
        max_retry_attempts: int | None = None,
        checkpoint_s3_uri: str | os.PathLike[str] | None = None,
        checkpoint_local_path: str | os.PathLike[str] | None = None,
        metric_definitions: Sequence[Mapping[str, str]] | None = ...,
        enable_sagemaker_metrics: bool | None = None,
        enable_remote_debug: bool | None = None,
        subnets: Sequence[str] | None = None,
        security_group_ids: Sequence[str] | None = None,
        encrypt_inter_container_traffic: bool | None = None,
        enable_network_isolation: bool | None = None,
        enable_infra_check: bool | None = None,
        enable_session_tag_chaining: bool | None = None,
        base_job_name: str | None = None,
        sagemaker_session: Any = None,
        tags: Sequence[Mapping[str, str]] | Mapping[str, str] | None = ...,
        arguments: Sequence[str | os.PathLike[str]] | None = None,
        hang_timeout: float | None = None,
        capture_limit: int = 10000000,
        run_options: RunOptions = ...,
    ) -> None: ...

class PyTorch(Estimator):
    framework_version: str | None
    py_version: str | None
    def __init__(
        self,
        entry_point: str | os.PathLike[str] | Callable[..., Any] | None = None,
        framework_version: str | None = None,
        py_version: str | None = None,
        source_dir: str | os.PathLike[str] | None = None,
        hyperparameters: Mapping[str, Any] | None = None,
        image_uri: str | None = None,
        distribution: Distribution | Mapping[str, Any] | None = None,
        *,
        role: str | None = None,
        instance_count: int = 1,
        instance_type: str = "local_process",
        keep_alive_period_in_seconds: int | None = None,
        volume_size: int = 30,
        volume_kms_key: str | None = None,
        training_plan: str | None = None,
        instance_placement_config: Mapping[str, Any] | None = None,
        dependencies: Sequence[str | os.PathLike[str]] | None = ...,
        code_location: str | None = None,
        environment: Mapping[str, str] | None = None,
        container_log_level: int = 20,
        container_entry_point: Sequence[str] | None = None,
        container_arguments: Sequence[str] | None = None,
        training_repository_access_mode: str | None = None,
        training_repository_credentials_provider_arn: str | None = None,
        input_mode: str = "File",
        model_uri: str | os.PathLike[str] | None = None,
        model_channel_name: str = "model",
        output_path: str | os.PathLike[str] | None = None,
        output_kms_key: str | None = None,
        disable_output_compression: bool = False,
        max_run: int = 86400,
        use_spot_instances: bool = False,
        max_wait: int | None = None,
        max_retry_attempts: int | None = None,
        checkpoint_s3_uri: str | os.PathLike[str] | None = None,
        checkpoint_local_path: str | os.PathLike[str] | None = None,
        metric_definitions: Sequence[Mapping[str, str]] | None = ...,
        enable_sagemaker_metrics: bool | None = None,
        enable_remote_debug: bool | None = None,
        subnets: Sequence[str] | None = None,
        security_group_ids: Sequence[str] | None = None,
        encrypt_inter_container_traffic: bool | None = None,
        enable_network_isolation: bool | None = None,
        enable_infra_check: bool | None = None,
        enable_session_tag_chaining: bool | None = None,
        base_job_name: str | None = None,
        sagemaker_session: Any = None,
        tags: Sequence[Mapping[str, str]] | Mapping[str, str] | None = ...,
        arguments: Sequence[str | os.PathLike[str]] | None = None,
        hang_timeout: float | None = None,
        capture_limit: int = 10000000,
        run_options: RunOptions = ...,
    ) -> None: ...
