"""Build and push the container image of jobs with the instance type ``local``: ``fleetfit image``."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from estimators.cli import Exit, console, parsing

_EXAMPLES = """\
examples:
  fleetfit image build                    build fleetfit-training on the default base image
  sudo fleetfit image base                make a base image from Debian packages, without a registry
  fleetfit image build --base IMAGE       use this base image; it must have venv and your environment's Python (3.x)
  fleetfit image build --gpu              include CUDA, from an environment made with FLEETFIT_TENSORFLOW=gpu
  fleetfit image push                     push the image to your registry on AWS, for instance_type='ml.…'

The image gets the packages of the environment that runs this command, Horovod included. If only fleetfit's own code has
changed, a build takes seconds.
"""


def add(subparsers: Any) -> None:
    """Add the command ``image`` to the command line."""
    image = subparsers.add_parser(
        "image", help="build the container image", epilog=_EXAMPLES,
        formatter_class=parsing.HelpFormatter,
        description="Builds the container image for jobs with instance_type 'local' and 'local_gpu'.",
    )  # fmt: skip
    verbs = image.add_subparsers(title="commands", metavar="COMMAND", dest="verb", required=True)
    build = verbs.add_parser("build", help="build fleetfit-training")
    build.add_argument(
        "--base",
        metavar="IMAGE",
        help="base image (default: fleetfit-base, or Docker Hub's Python if there is no fleetfit-base)",
    )
    build.add_argument("--tag", metavar="NAME", help="name of the new image (default: fleetfit-training)")
    build.add_argument("--gpu", action="store_true", help="include TensorFlow's CUDA libraries")
    build.set_defaults(run=run_build)
    base = verbs.add_parser("base", help="make a base image with debootstrap, without a registry (needs root)")
    base.add_argument("--tag", metavar="NAME", help="name of the new image (default: fleetfit-base)")
    base.add_argument(
        "--release", metavar="NAME",
        help="Debian's release (default: the release with the Python version that runs fleetfit)",
    )  # fmt: skip
    base.add_argument("--mirror", metavar="URL", help="mirror of Debian's packages (default: debootstrap's)")
    base.set_defaults(run=run_base)
    push = verbs.add_parser(
        "push", help="push the image to ECR, for jobs on SageMaker",
        description="Pushes the image to your registry on AWS (ECR). Creates the repository if necessary. Jobs "
        "with instance_type 'ml.…' use this image by default. Prints the image's address, for image_uri.",
    )  # fmt: skip
    push.add_argument("image", nargs="?", metavar="IMAGE", help="image to push (default: fleetfit-training)")
    push.add_argument("--repository", metavar="NAME", help="the repository's name (default: fleetfit-training)")
    push.add_argument(
        "--tag", metavar="TAG", help="tag in the registry (default: latest, or gpu if the image was built with --gpu)"
    )
    push.add_argument("--region", metavar="NAME", help="AWS region (default: AWS_REGION, or the profile's region)")
    push.add_argument("--profile", metavar="NAME", help="profile of the AWS configuration files")
    push.set_defaults(run=run_push)


def run_build(args: argparse.Namespace) -> int:
    """Build the container image, and print its name."""
    from estimators.backends.images import build
    from estimators.backends.images.engine import ImageEngine
    from estimators.backends.images.toolkit import IMAGE
    from estimators.job.errors import BackendError
    from estimators.provision.errors import ProvisionError
    from estimators.provision.progress import StepProgress

    engine = ImageEngine()
    name = args.tag or IMAGE
    progress = StepProgress(sys.stderr)
    try:
        with progress.step(f"Image {name}"):
            made = build.build(engine, name=name, base=args.base, gpu=args.gpu, progress=progress)
            progress.detail(made.removeprefix("sha256:")[:12])
    except ProvisionError as error:
        raise BackendError(str(error)) from None
    console.out(name)
    return Exit.OK


def run_push(args: argparse.Namespace) -> int:
    """Push a container image to Amazon's registry ECR, and print the URI of the pushed image."""
    from estimators.backends.images.engine import ImageEngine
    from estimators.backends.images.toolkit import IMAGE
    from estimators.backends.sagemaker import ecr as push
    from estimators.backends.sagemaker import images
    from estimators.backends.sagemaker.aws import Aws
    from estimators.provision.progress import StepProgress

    aws = Aws(region=args.region, profile=args.profile)
    engine = ImageEngine()
    progress = StepProgress(sys.stderr)
    with progress.step(f"Pushing {args.image or IMAGE}"):
        uri = push.push(
            engine,
            aws,
            image=args.image or IMAGE,
            repository=args.repository or images.REPOSITORY,
            tag=args.tag,
            progress=progress,
        )
    console.out(uri)
    return Exit.OK


def run_base(args: argparse.Namespace) -> int:
    """Build a base image from Debian packages, and print its name."""
    from estimators.backends.images import base
    from estimators.backends.images.engine import ImageEngine
    from estimators.provision.progress import StepProgress

    engine = ImageEngine()
    name = args.tag or base.BASE
    progress = StepProgress(sys.stderr)
    with progress.step(f"Base image {name}"):
        made = base.make(engine, name=name, release=args.release, mirror=args.mirror, progress=progress)
        progress.detail(made.removeprefix("sha256:")[:12])
    console.out(name)
    return Exit.OK
