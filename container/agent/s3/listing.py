"""List the S3 objects under a prefix, and describe single objects."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from container.agent.s3.client import call, client, etag, split
from container.agent.sources.base import DataObject, SourceError


def listing(uri: str, *, limit: int | None = None, empty: bool = False, markers: bool = False) -> list[DataObject]:
    """Return the objects whose keys begin with a prefix, sorted by the bytes of their keys.

    Args:
        uri: ``s3://bucket/prefix``.
        limit: Number of objects after which the listing stops. The rest of the server's page is also returned. None for
            no limit.
        empty: Whether to accept a prefix without objects. If false, such a prefix is an error.
        markers: Whether to include folder markers, which are objects whose keys end with a slash.

    Raises:
        SourceError: there are no objects with this prefix, or the bucket cannot be listed.
    """
    found: list[DataObject] = []
    for page in pages(uri, empty=empty, markers=markers):
        found += page
        if limit is not None and len(found) >= limit:
            break
    return sorted(found, key=lambda item: item.uri.encode())


def pages(uri: str, *, empty: bool = False, markers: bool = False) -> Iterator[list[DataObject]]:
    """Yield the objects of :func:`listing` page by page, in the server's order.

    Args:
        uri: ``s3://bucket/prefix``.
        empty: Whether to accept a prefix without objects.
        markers: Whether to include folder markers, as for :func:`listing`.

    Raises:
        SourceError: as for :func:`listing`.
    """
    bucket, prefix = split(uri)
    for answer in _answers(uri, bucket, prefix):
        page = [
            DataObject(
                f"s3://{bucket}/{key}",
                entry["Size"],
                etag(entry),
                relative_key(key, prefix),
                written.timestamp() if (written := entry.get("LastModified")) is not None else None,
            )
            for entry in answer
            if not (key := entry["Key"]).endswith("/") or (markers and key != prefix)
        ]
        if page:
            empty = True
            yield page
    if not empty:
        raise SourceError(uri, "no object has a key with this prefix", _near(bucket, prefix))


def is_sorted(uri: str) -> bool:
    """Return whether the server lists the bucket in the order of the keys.

    S3's directory buckets and the access points of directory buckets are not listed in this order.
    """
    return not split(uri)[0].endswith(("--x-s3", "--xa-s3"))


def _answers(uri: str, bucket: str, prefix: str) -> Iterator[list[dict[str, Any]]]:
    s3 = client()
    token: dict[str, str] = {}

    def page() -> dict[str, Any]:
        answer: dict[str, Any] = s3.list_objects_v2(Bucket=bucket, Prefix=prefix, **token)
        if "IsTruncated" not in answer:  # botocore returns an empty dict if a body is cut off before its first byte
            raise ConnectionError("the list of objects was cut off")
        return answer

    while True:
        answer = call(uri, page)
        yield answer.get("Contents", [])
        if not answer.get("IsTruncated") or not answer.get("NextContinuationToken"):
            return
        token = {"ContinuationToken": answer["NextContinuationToken"]}


def _near(bucket: str, prefix: str) -> str:
    """Return a sentence for an error message that suggests the prefix that the user probably meant. Return "" if no
    prefix is similar.
    """
    from container.contract.names import nearest

    folder, _, last = prefix.rstrip("/").rpartition("/")
    above = f"{folder}/" if folder else ""
    with contextlib.suppress(Exception):
        page = client().list_objects_v2(Bucket=bucket, Prefix=above, Delimiter="/", MaxKeys=200)
        names = [entry["Prefix"][len(above) :].rstrip("/") for entry in page.get("CommonPrefixes", [])]
        names += [entry["Key"][len(above) :] for entry in page.get("Contents", [])]
        guess = nearest(last, names)
        if guess is not None and guess != last:
            return f"Did you mean {f's3://{bucket}/{above}{guess}'!r}?"
        if names:
            return f"Under {f's3://{bucket}/{above}'!r}, the bucket has {', '.join(map(repr, sorted(names)[:5]))}."
    return ""


def relative_key(key: str, prefix: str) -> str:
    """Return an object's path in the channel's folder.

    If the prefix is a folder of the key, the path is the part of the key after that folder. Otherwise the path is the
    part of the key after the prefix's last slash. Examples:

    * The key ``train/data/a`` has the path ``data/a`` under the prefixes ``train`` and ``train/``.
    * The key ``x/train-2/a`` has the path ``train-2/a`` under the prefix ``x/train``.
    * The key ``x/a.csv`` has the path ``a.csv`` under the prefix ``x/a.csv``.
    """
    folder = prefix if not prefix or prefix.endswith("/") else f"{prefix}/"
    if key.startswith(folder):
        return key[len(folder) :]
    return key[prefix.rfind("/") + 1 :]


def describe(uri: str, key: str = "") -> DataObject:
    """Return the object of a URI with its size and ETag.

    Raises:
        SourceError: the object does not exist, or cannot be read.
    """
    bucket, name = split(uri)
    s3 = client()
    head = call(uri, lambda: s3.head_object(Bucket=bucket, Key=name))
    return DataObject(uri, head["ContentLength"], etag(head), key or name.rpartition("/")[2])
