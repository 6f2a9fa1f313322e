"""Choose the image of a SageMaker job.

The candidates are the image that the user gave, AWS's image for a framework version, and fleetfit's image in the user's
ECR.
"""

from __future__ import annotations

import re
from typing import Any

from container.contract.frozen import dataclass
from container.contract.strategies import FRAMEWORKS
from estimators.backends.sagemaker.aws import Aws
from estimators.backends.sagemaker.explaining import explain, is_denied, is_missing
from estimators.job import instances
from estimators.job.errors import ConfigurationError
from estimators.job.settings import Settings

#: The repository that ``fleetfit image push`` pushes to, and its tags for instances without and with GPUs.
REPOSITORY = "fleetfit-training"
TAGS = {False: "latest", True: "gpu"}

#: Every pushed image that contains our toolkit has a tag with this prefix. The rest of the tag is the toolkit's digest.
TOOLKIT_TAG = "toolkit-"

_AWS_TENSORFLOW = re.compile(r"\.amazonaws\.com(\.cn)?/(tensorflow-training|sagemaker-tensorflow(-scriptmode)?):")


@dataclass(frozen=True)
class Choice:
    """An image with warnings about it."""

    uri: str
    warnings: tuple[str, ...] = ()


#: The only framework in our own image.
_OWN_FRAMEWORK = "tensorflow"
#: Framework -> its name in the SageMaker SDK.
_AWS_NAMES = {"tensorflow": "tensorflow", "torch": "pytorch"}


def choose(settings: Settings, aws: Aws, framework: str = _OWN_FRAMEWORK) -> Choice:
    """Return the image of a job, with warnings about it.

    Args:
        settings: The estimator's settings.
        aws: The AWS clients of the job's region.
        framework: The framework that the script uses, such as ``tensorflow``.

    Raises:
        ConfigurationError: there is no image. The message says how to get an image.
    """
    if settings.image_uri is not None:
        return Choice(settings.image_uri)
    if settings.framework_version is not None:
        return Choice(aws_image(settings, aws, framework))
    if framework != _OWN_FRAMEWORK:
        raise ConfigurationError(_none_of_ours(framework))
    return own_image(settings, aws)


def _none_of_ours(framework: str) -> str:
    return (
        "no image was given, and fleetfit's own image is only for TensorFlow. Give image_uri, or framework_version "
        f"and py_version for one of AWS's {FRAMEWORKS[framework]} images."
    )


def unknown(settings: Settings, framework: str = _OWN_FRAMEWORK) -> str:
    """Return the error message for a job without ``image_uri`` if AWS cannot be asked which images exist."""
    if framework != _OWN_FRAMEWORK and settings.framework_version is None:
        return _none_of_ours(framework)
    if settings.framework_version is not None and not _has_sdk():
        return _needs_sdk(settings)
    return (
        "image_uri is missing, and AWS could not be asked whether fleetfit's own image is in your ECR (`fleetfit image "
        "push` uploads this image). Give image_uri, or framework_version and py_version for one of AWS's images"
        + ("." if _has_sdk() else ", whose addresses come with the SageMaker SDK 2.x (`fleetfit install sagemaker`).")
    )


def _has_sdk() -> bool:
    import importlib.util

    return importlib.util.find_spec("sagemaker") is not None


def _needs_sdk(settings: Settings) -> str:
    return (
        f"framework_version={str(settings.framework_version)!r} cannot be used, because the addresses of AWS's "
        "images come with the SageMaker SDK 2.x, which is not installed. Run `fleetfit install sagemaker`, give "
        "image_uri, or leave framework_version out for fleetfit's own image."
    )


def is_ours(uri: str) -> bool:
    """Return whether the name of an image's repository shows that the image is fleetfit's own."""
    return repository_of(uri).rpartition("/")[2].startswith(REPOSITORY)


def is_aws_tensorflow(uri: str) -> bool:
    """Return whether an image is one of AWS's images for TensorFlow."""
    return _AWS_TENSORFLOW.search(uri) is not None


def repository_of(uri: str) -> str:
    """Return an image's name without its tag or digest."""
    name = uri.partition("@")[0]
    head, colon, tag = name.rpartition(":")
    return head if colon and "/" not in tag else name


def aws_image(settings: Settings, aws: Aws, framework: str = _OWN_FRAMEWORK) -> str:
    """Return the URI of AWS's image for a framework version. The SageMaker SDK provides the URI.

    Raises:
        ConfigurationError: the SageMaker SDK or ``py_version`` is missing, or AWS has no such image.
    """
    version = str(settings.framework_version)
    try:
        from sagemaker import image_uris
    except ImportError:
        raise ConfigurationError(_needs_sdk(settings)) from None
    if settings.py_version is None:
        raise ConfigurationError(
            f"framework_version={version!r} needs py_version too: each image of AWS has one Python, such as py310."
        )
    try:
        return str(
            image_uris.retrieve(
                _AWS_NAMES[framework],
                aws.region,
                version=version,
                py_version=settings.py_version,
                instance_type=settings.instance_type,
                image_scope="training",
            )
        )
    except (ValueError, KeyError) as error:
        raise ConfigurationError(f"AWS has no such {FRAMEWORKS[framework]} image: {error}") from error


def own_image(settings: Settings, aws: Aws) -> Choice:
    """Return fleetfit's image in the user's ECR (container registry on AWS).

    If the caller has no permission to look for the image, the result contains a warning.

    Raises:
        ConfigurationError: the image is not in the user's ECR.
    """
    tag = TAGS[instances.gpus(settings.instance_type) > 0]
    uri = f"{registry(aws.account, aws)}/{REPOSITORY}:{tag}"
    push = "`fleetfit image push`" if tag != "gpu" else "`fleetfit image build --gpu` followed by `fleetfit image push`"
    others = "or give image_uri, or framework_version and py_version for one of AWS's images"
    try:
        answer = aws.client("ecr").describe_images(repositoryName=REPOSITORY, imageIds=[{"imageTag": tag}])
    except Exception as error:
        if is_missing(error):
            raise ConfigurationError(f"there is no image {uri}. Upload it with {push}, {others}.") from None
        if is_denied(error):
            return Choice(uri, (f"fleetfit could not check whether image {uri} exists: {explain(error)}",))
        raise
    return Choice(uri, _outdated(answer, uri, push))


def registry(account: str, aws: Aws) -> str:
    """Return the address of an account's registry in ECR."""
    return f"{account}.dkr.ecr.{aws.region}.{aws.domain}"


def _outdated(answer: Any, uri: str, push: str) -> tuple[str, ...]:
    from estimators.backends.images.toolkit import toolkit_digest

    tags = [tag for image in answer.get("imageDetails") or () for tag in image.get("imageTags") or ()]
    pushed = [tag.removeprefix(TOOLKIT_TAG) for tag in tags if tag.startswith(TOOLKIT_TAG)]
    if not pushed or toolkit_digest() in pushed:
        return ()
    return (
        f"image {uri} contains another version of fleetfit's toolkit than the version installed here. {push} uploads "
        "the version installed here.",
    )
