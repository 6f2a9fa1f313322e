"""Serve SageMaker's training API on this machine: ``fleetfit serve``."""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from estimators.cli import Exit, console, parsing, servers
from estimators.job.errors import ConfigurationError

if TYPE_CHECKING:
    from estimators.service.profile import Address
    from estimators.service.settings import EndpointFiles

_EXAMPLES = """\
examples:
  fleetfit serve                          serve until Ctrl-C; print the variables for clients
  AWS_PROFILE=fleetfit aws sagemaker list-training-jobs
  fleetfit serve --env-file endpoint.env --port 0 --s3-port 0 --no-profile
                                          for scripts and CI: write the variables for clients to a file
  fleetfit serve --backend docker --image-map '*/tensorflow-training:2.*=my-training:1'

Scripts that use boto3, the aws command line or the SageMaker SDK work unchanged: their jobs run on this machine, as
processes or in containers. The endpoint listens on loopback and accepts only requests that are signed with its own
keys. Jobs continue when the endpoint ends, and the next endpoint finds these jobs again.
"""


#: Default for the maximum number of jobs that the endpoint puts into a queue. Each waiting job occupies a process.
_QUEUED = 16


def add(subparsers: Any) -> None:
    """Add the command ``serve`` to the command line."""
    command = subparsers.add_parser(
        "serve", help="serve SageMaker's training API", epilog=_EXAMPLES,
        formatter_class=parsing.HelpFormatter,
        description="Serves SageMaker's training API on this machine, and runs the jobs here. Also serves the parts of "
        "CloudWatch, STS and S3 that clients need.",
    )  # fmt: skip
    command.add_argument(
        "--port", type=parsing.port, default=8666, metavar="N", help="port; 0: a free port (default: 8666)"
    )
    command.add_argument(
        "--s3-port", type=parsing.port, default=8667, metavar="N", help="port of the S3 server (default: 8667)"
    )
    command.add_argument(
        "--s3-dir", metavar="DIR", help="the folder that contains the buckets (default: s3 in $FLEETFIT_HOME)"
    )
    command.add_argument(
        "--backend", default="process", metavar="NAME",
        help="where jobs run: 'process' (processes of this machine, the default) or 'docker' (containers)",
    )  # fmt: skip
    command.add_argument(
        "--image-map", action="append", default=[], metavar="PATTERN=IMAGE",
        help="with --backend docker: run the local IMAGE when a job names an image URI that matches PATTERN; may be "
        "repeated. By default, fleetfit's own image replaces AWS's TensorFlow images",
    )  # fmt: skip
    command.add_argument(
        "--without", action="append", default=[], metavar="MEMBER",
        help="ignore this field of requests, such as VpcConfig; may be repeated. By default, requests with a field "
        "that only AWS supports are refused",
    )  # fmt: skip
    command.add_argument(
        "--max-jobs", type=parsing.count, metavar="N",
        help="without --queue: maximum number of jobs that run at once (default: 1); with --queue: maximum number of "
        "jobs that run or wait in the queue (default: 16)",
    )  # fmt: skip
    command.add_argument(
        "--queue", metavar="NAME",
        help="let jobs wait in the machine's queue NAME, together with the jobs of `fleetfit train --queue NAME`",
    )  # fmt: skip
    command.add_argument(
        "--region", default="us-east-1", metavar="NAME", help="region that the endpoint reports (default: us-east-1)"
    )
    command.add_argument(
        "--profile",
        default="fleetfit",
        metavar="NAME",
        help="name of the profile that the endpoint adds to the AWS configuration files (default: fleetfit)",
    )
    command.add_argument("--no-profile", action="store_true", help="do not change the AWS configuration files")
    command.add_argument(
        "--no-sdk-config", action="store_true",
        help="do not write the SageMaker SDK's configuration to ~/.config/sagemaker/config.yaml. By default, the "
        "endpoint writes this file and removes the file when the endpoint ends; an existing file of yours is not "
        "changed. Without this file, the SDK needs the variables ending in CONFIG_OVERRIDE that the endpoint prints",
    )  # fmt: skip
    command.add_argument(
        "--env-file", metavar="FILE",
        help="as soon as the endpoint answers, write the variables for clients to this file, as KEY=VALUE lines",
    )  # fmt: skip
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Serve the API until SIGINT or SIGTERM."""
    servers.check_packages()
    from estimators.service import profile
    from estimators.service.serving import Options, Service
    from estimators.service.translation import Local

    local = Local(
        backend=args.backend,
        images=tuple(_mapping(text) for text in args.image_map),
        without=frozenset(args.without),
        queue=args.queue,
    )
    most = args.max_jobs or (1 if args.queue is None else _QUEUED)
    options = Options(
        port=args.port,
        s3_port=args.s3_port,
        s3_folder=Path(args.s3_dir).expanduser() if args.s3_dir else None,
        region=args.region,
        limit=most,
        local=local,
    )
    env_file = Path(os.path.abspath(os.path.expanduser(args.env_file or "")))
    with servers.noted_signals() as told:
        with Service(options, console.say) as service, contextlib.ExitStack() as ended:
            place, address = service.place, service.address
            lines = []
            if not args.no_profile:
                profile.write_profile(args.profile, address)
                lines.append(f"export AWS_PROFILE={args.profile}")
            if not _installed(args, place, address, ended):
                file = shlex.quote(str(place.sdk_config_file))
                lines += [f"export {name}={file}" for name in profile.SDK_CONFIG]
            if args.env_file:
                profile.write_env_file(env_file, place, address)
                ended.callback(profile.remove_env_file, env_file, place, address)
                lines = [f"set -a; . {shlex.quote(str(env_file))}; set +a"] if args.no_profile else lines
            console.out("\n".join(lines))
            console.say(
                f"SageMaker at {address.endpoint}, S3 at {address.s3_endpoint} ({service.storage.folder}), default "
                f"bucket {address.bucket}; jobs run as {'processes' if args.backend == 'process' else 'containers'}, "
                f"at most {most} at a time{f' in the queue {args.queue}' if args.queue else ''}. Ctrl-C ends the "
                "endpoint."
            )
            servers.wait(told)
            left = service.queue.running
        if left:
            console.say(f"{left} job(s) continue. The S3 server runs until these jobs have ended.")
    return Exit.OK


def _installed(args: argparse.Namespace, place: EndpointFiles, address: Address, ended: contextlib.ExitStack) -> bool:
    """Install the SageMaker SDK's configuration file at its default path until the endpoint exits.

    Return whether the file was installed.
    """
    from estimators.backends.sagemaker import sdk_config
    from estimators.service import profile

    if args.no_profile or args.no_sdk_config:
        return False
    path = sdk_config.user_file()
    if not profile.install_sdk_config(place, address, path):
        console.say(
            f"{path} is your own file and is not changed. Therefore the SDK needs {' and '.join(profile.SDK_CONFIG)} "
            "in addition to AWS_PROFILE (the second one is for the SDK 3.x)."
        )
        return False
    ended.callback(profile.remove_sdk_config, place, address, path)
    return True


def _mapping(text: str) -> tuple[str, str]:
    pattern, equals, image = text.partition("=")
    if not equals or not pattern or not image:
        raise ConfigurationError(f"--image-map {text!r} must be PATTERN=IMAGE, such as '*/tensorflow-training:*=mine'.")
    return pattern, image
