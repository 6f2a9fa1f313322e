"""Tries ``instance_type="ec2.…"`` against AWS itself, for some cents: ``python benchmarks/aws_smoke.py --yes``.

It launches two small spot instances in the region that boto3 finds, runs a job of a few seconds on them, has the same
started again and its supervisor killed, and says how long everything took, what it cost, and whether anything is left.
Nothing of the project's own tests runs this: it needs an account.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from estimators import RunOptions, TensorFlow, backends
from estimators.backends.ec2.api import Ec2Api
from estimators.backends.ec2.requests import JOB_TAG
from estimators.cli.clean import left_by, remove

SCRIPT = """
import os, platform, sys, time
print("host", os.environ.get("SM_CURRENT_HOST"), platform.platform(), sys.version.split()[0], flush=True)
time.sleep(float(os.environ.get("SECONDS_TO_RUN", "5")))
"""


def estimator(folder: Path, arguments: argparse.Namespace, seconds: float) -> TensorFlow:
    (folder / "train.py").write_text(SCRIPT)
    options: dict[str, Any] = {"budget": arguments.budget, "requirements": ["numpy"], "types": arguments.also}
    for name in ("region", "profile", "ami", "user"):
        if getattr(arguments, name) is not None:
            options[name] = getattr(arguments, name)
    if arguments.subnet:
        options["subnets"] = arguments.subnet
    return TensorFlow(
        entry_point="train.py",
        source_dir=str(folder),
        instance_type=f"ec2.{arguments.type}",
        instance_count=2,
        use_spot_instances=True,
        max_run=900,
        max_wait=1800,
        model_dir=False,
        environment={"SECONDS_TO_RUN": str(seconds)},
        run_options=RunOptions(backend_options=options),
    )


def running(api: Ec2Api, job: str) -> list[str]:
    return [one.name for one in api.resources() if one.kind == "instance" and one.tags.get(JOB_TAG) == job]


def main() -> int:
    parser = argparse.ArgumentParser(description="Try EC2 for some cents.")
    parser.add_argument("--type", default="t3.medium")
    parser.add_argument("--also", nargs="*", default=["t3a.medium", "c5.large"], help="further types that will do")
    parser.add_argument("--region")
    parser.add_argument("--profile")
    parser.add_argument("--ami")
    parser.add_argument("--user")
    parser.add_argument("--subnet", nargs="*", default=[])
    parser.add_argument("--budget", type=float, default=0.50, help="US dollars for each of the two jobs")
    parser.add_argument("--yes", action="store_true", help="this costs money")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="aws-smoke-"))
    made = estimator(folder, arguments, 5.0)
    print(made.plan())
    if not arguments.yes:
        print("\nNothing was started: add --yes to run two jobs of two hosts.")
        return 2
    api = Ec2Api(region=arguments.region, profile=arguments.profile)
    began = time.monotonic()
    job = made.fit()
    print(f"job {job.name}: {job.status} after {time.monotonic() - began:.0f} s; cost {job.result().cost()}")
    ended = time.monotonic()
    while running(api, job.name):
        time.sleep(2)
    print(f"no instance of it {time.monotonic() - ended:.0f} s after its end")
    killed = estimator(folder, arguments, 600.0).fit(wait=False)
    while killed.describe()["SecondaryStatus"] != "Training":
        if killed.status != "InProgress":
            print(killed.describe().get("FailureReason"))
            return 1
        time.sleep(1)
    os.kill(int(killed.describe()["Fleetfit"]["supervisor_pid"]), signal.SIGKILL)
    lost = time.monotonic()
    while running(api, killed.name):
        time.sleep(2)
    print(f"no instance {time.monotonic() - lost:.0f} s after SIGKILL of the supervisor (60 s are allowed)")
    time.sleep(90)  # the last instance's network interface keeps the security group
    left = left_by(backends.load("ec2"), arguments.region or "")
    print("nothing is left" if not left else [str(removal.error or removal.item.why) for removal in remove(left)])
    return 0 if job.status == "Completed" and not left else 1


if __name__ == "__main__":
    sys.exit(main())
