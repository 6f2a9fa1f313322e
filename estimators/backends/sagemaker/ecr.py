"""Push an image from this machine to the user's container registry on AWS (ECR), for jobs on SageMaker."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Any

from estimators.backends.images.toolkit import IMAGE, TOOLKIT_LABEL
from estimators.backends.sagemaker import images
from estimators.backends.sagemaker.aws import Aws
from estimators.backends.sagemaker.explaining import code_of, explain
from estimators.job.errors import BackendError, ConfigurationError
from estimators.provision.progress import SILENT, ProgressDisplay

if TYPE_CHECKING:
    from estimators.backends.images.engine import ImageEngine

#: The label with the device (CPU or GPU) that an image was built for.
_DEVICE_LABEL = "fleetfit.device"


def push(
    engine: ImageEngine,
    aws: Aws,
    *,
    image: str = IMAGE,
    repository: str = images.REPOSITORY,
    tag: str | None = None,
    progress: ProgressDisplay = SILENT,
) -> str:
    """Push an image to ECR. Create the repository if it does not exist.

    Args:
        engine: The container engine that has the image.
        aws: The AWS clients of the registry's region.
        image: The image's name in the container engine.
        repository: The name of the repository in ECR.
        tag: The image's tag in ECR. The default is ``gpu`` for an image that was built for GPUs, and ``latest`` for
            other images. Our own image also gets a tag with the digest of its toolkit.
        progress: The receiver of progress messages.

    Returns:
        The image's URI in ECR, for ``image_uri``.

    Raises:
        EngineError: the container engine does not have the image, or could not push it.
        ConfigurationError: the repository's name is not valid, or credentials are missing.
        BackendError: ECR refuses a request.
    """
    labels = engine.image(image).labels
    chosen = tag or images.TAGS[labels.get(_DEVICE_LABEL) == "gpu"]
    tags = [chosen]
    if TOOLKIT_LABEL in labels:
        tags.append(images.TOOLKIT_TAG + labels[TOOLKIT_LABEL])
    try:
        ecr = aws.client("ecr")
        progress.detail(f"repository {repository}")
        uri = ensure_repository(ecr, repository)
        user, password, registry = _login(ecr)
    except (ConfigurationError, BackendError):
        raise
    except Exception as error:
        raise BackendError(f"the image cannot be pushed: {explain(error)}") from error
    for name in tags:
        target = f"{uri}:{name}"
        progress.detail(f"{name} to {registry}")
        engine.push(image, target, user, password, progress=progress)
    return f"{uri}:{chosen}"


def ensure_repository(ecr: Any, name: str) -> str:
    """Return the URI of a repository. Create the repository if it does not exist."""
    try:
        return str(ecr.describe_repositories(repositoryNames=[name])["repositories"][0]["repositoryUri"])
    except Exception as error:
        if code_of(error) == "InvalidParameterException":
            raise ConfigurationError(f"--repository {name!r} is not a valid name in ECR: {explain(error)}") from error
        if code_of(error) != "RepositoryNotFoundException":
            raise
    try:
        return str(ecr.create_repository(repositoryName=name)["repository"]["repositoryUri"])
    except Exception as error:
        if code_of(error) == "RepositoryAlreadyExistsException":  # the repository was created meanwhile
            return str(ecr.describe_repositories(repositoryNames=[name])["repositories"][0]["repositoryUri"])
        raise


def _login(ecr: Any) -> tuple[str, str, str]:
    """Return the user, the password and the address of the registry. The password is valid for twelve hours."""
    data = ecr.get_authorization_token()["authorizationData"][0]
    user, _, password = base64.b64decode(data["authorizationToken"]).decode().partition(":")
    return user, password, str(data["proxyEndpoint"])
