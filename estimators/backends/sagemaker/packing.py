"""Pack the code and upload it to ``<prefix>/<job>/source/sourcedir.tar.gz``, like the SageMaker SDK."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from container.system import folders
from estimators.backends.images.toolkit import SKIPPED, package
from estimators.backends.sagemaker.aws import Aws
from estimators.backends.sagemaker.discovery import own_bucket
from estimators.backends.sagemaker.explaining import code_of
from estimators.backends.sagemaker.shipping import Uploads
from estimators.job.errors import BackendError
from estimators.job.request import TrainingJobSpec

#: gzip's compression level: fast, and within a few percent of the smallest size.
_LEVEL = 6


def pack(folder: Path, target: Path, *, name: str = "", skipped: tuple[str, ...] = ()) -> int:
    """Pack a folder as ``.tar.gz``. The same content always results in the same bytes.

    Args:
        folder: The folder.
        target: The path of the archive.
        name: The folder's name in the archive. If empty, the folder's content is at the top level of the archive.
        skipped: Names of files and folders that are not packed.

    Returns:
        The archive's size in bytes.
    """

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if set(entry.name.split("/")) & set(skipped):
            return None
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = int(entry.mtime)
        if not entry.issym():
            entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    with open(target, "wb") as raw, gzip.GzipFile("", "wb", _LEVEL, raw, mtime=0) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
            if name:
                archive.add(folder, name, filter=plain)  # tarfile adds the entries in sorted order
            else:
                for path in sorted(folder.iterdir()):
                    archive.add(path, path.name, filter=plain)
    return target.stat().st_size


def split(uri: str) -> tuple[str, str]:
    """Return the bucket and the key of ``s3://bucket/key``."""
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return bucket, key


def upload(aws: Aws, spec: TrainingJobSpec, source: Path, wanted: Uploads, on_detail: Callable[[str], None]) -> None:
    """Upload the files that a job needs. Create the account's default bucket if the job uses it and it does not exist.

    Args:
        aws: The AWS clients.
        spec: The job.
        source: The folder with the job's code.
        wanted: The S3 URI of each archive to upload.
        on_detail: A function that receives progress messages.

    Raises:
        BackendError: the bucket belongs to another account.
        Exception: boto3 could not upload a file.
    """
    client = aws.client("s3")
    for uri in filter(None, (wanted.source, spec.output.path)):
        _ensure_bucket(aws, split(uri)[0])
    with folders.temporary("upload") as folder:
        if wanted.source is not None:
            archive = folder / "sourcedir.tar.gz"
            size = pack(source, archive)
            on_detail(f"Uploading the code, {size / 1e6:.1f} MB")
            _put(client, archive, wanted.source, spec)
        if wanted.toolkit is not None and wanted.starter is not None:
            archive = folder / "toolkit.tar.gz"
            pack(package(), archive, name="container", skipped=SKIPPED)
            on_detail("Uploading fleetfit's toolkit")
            _put(client, archive, wanted.toolkit, spec)
            _put(client, package() / "toolkit" / "bootstrap.py", wanted.starter, spec)


def _put(client: Any, path: Path, uri: str, spec: TrainingJobSpec) -> None:
    bucket, key = split(uri)
    extra = {}
    # As in the SageMaker SDK, the output's KMS key is used only in the output's bucket.
    if spec.output.kms_key and bucket == split(spec.output.path)[0]:
        extra = {"ServerSideEncryption": "aws:kms", "SSEKMSKeyId": spec.output.kms_key}
    client.upload_file(str(path), bucket, key, ExtraArgs=extra)


def _ensure_bucket(aws: Aws, bucket: str) -> None:
    """Create the bucket if it is the account's default bucket and does not exist. The user creates all other buckets.

    Raises:
        BackendError: the bucket belongs to another account or is not accessible.
    """
    if not bucket.startswith(f"sagemaker-{aws.region}-") or bucket != own_bucket(aws):
        return
    client = aws.client("s3")
    try:
        client.head_bucket(Bucket=bucket, ExpectedBucketOwner=aws.account)
        return
    except Exception as error:
        if code_of(error) in ("403", "AccessDenied", "Forbidden"):
            raise BackendError(
                f"bucket {bucket!r} has the name of the account's default bucket, but belongs to another account or "
                "is not accessible. Give output_path='s3://…'."
            ) from error
        if code_of(error) not in ("404", "NoSuchBucket", "NotFound"):
            raise
    where = {} if aws.region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": aws.region}}
    try:
        client.create_bucket(Bucket=bucket, **where)
    except Exception as error:
        if code_of(error) not in ("BucketAlreadyOwnedByYou", "OperationAborted"):
            raise
