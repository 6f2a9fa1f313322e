"""Find the S3 operation that a request calls, and execute the operation."""

from __future__ import annotations

import base64
import collections
import contextlib
import os
import re
import threading
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

from estimators.service.errors import ServiceError
from estimators.service.s3 import documents, objects, requests, uploads
from estimators.service.s3.keys import Bucket, behind, bucket_of, no_such_bucket
from estimators.service.s3.objects import Described
from estimators.service.s3.requests import Reply, Request

#: Parameters that do not select an operation.
_HARMLESS = {
    *("x-id", "list-type", "prefix", "delimiter", "marker", "max-keys", "encoding-type", "continuation-token"),
    *("start-after", "fetch-owner", "key-marker", "upload-id-marker", "max-uploads", "part-number-marker", "max-parts"),
    *("AWSAccessKeyId", "Signature", "Expires", "content-type", "content-md5", "partNumber", "max-buckets"),
}
#: Parameters that set headers of the response.
_OVERRIDES = {
    f"response-{name}": name
    for name in ("content-type", "content-language", "expires", "cache-control", "content-disposition",
                 "content-encoding")
}  # fmt: skip
#: The prefixes of unsupported headers. Requests with such headers are refused. If the server ignored the headers, the
#: effect would differ from the requested effect.
_REFUSED = (
    "x-amz-write-offset-bytes", "x-amz-if-match-", "x-amz-object-lock-",
    "x-amz-server-side-encryption-customer-", "x-amz-copy-source-server-side-encryption-customer-",
    "x-amz-website-redirect-location", "x-amz-rename-source",
)  # fmt: skip
_OWNER: documents.Node = ("Owner", [("ID", "fleetfit"), ("DisplayName", "fleetfit")])
_NAME = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_MOST = 1000
#: Number of completed uploads that are remembered.
_REMEMBERED = 10_000


class Operations:
    """The S3 operations on a folder.

    Args:
        folder: The folder of the buckets.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        #: Completed uploads (bucket, key, id) -> ETag. A client that has lost the response repeats its request.
        self._completed: collections.OrderedDict[tuple[str, str, str], str] = collections.OrderedDict()
        self._operations: dict[tuple[str, str, str], Callable[[Request], Reply]] = {
            ("GET", "service", ""): self._list_buckets,
            ("PUT", "bucket", ""): self._create_bucket,
            ("HEAD", "bucket", ""): self._head_bucket,
            ("DELETE", "bucket", ""): self._delete_bucket,
            ("GET", "bucket", ""): self._list_objects,
            ("GET", "bucket", "location"): self._location,
            ("GET", "bucket", "versioning"): self._versioning,
            ("GET", "bucket", "acl"): self._acl,
            ("GET", "bucket", "uploads"): self._list_uploads,
            ("POST", "bucket", "delete"): self._delete_objects,
            ("GET", "object", ""): self._get_object,
            ("HEAD", "object", ""): self._get_object,
            ("PUT", "object", ""): self._put_object,
            ("DELETE", "object", ""): self._delete_object,
            ("GET", "object", "acl"): self._acl,
            ("GET", "object", "tagging"): self._tagging,
            ("POST", "object", "uploads"): self._begin_upload,
            ("PUT", "object", "uploadId"): self._put_part,
            ("GET", "object", "uploadId"): self._list_parts,
            ("POST", "object", "uploadId"): self._complete_upload,
            ("DELETE", "object", "uploadId"): self._abort_upload,
        }

    def respond(self, request: Request) -> Reply:
        """Execute the operation of a request.

        Raises:
            ServiceError: the request fails. The error has the reason.
            OSError: a file cannot be read or written.
        """
        level = "object" if request.key else "bucket" if request.bucket else "service"
        chosen = sorted(
            name
            for name in request.query
            if name not in _HARMLESS and not name.lower().startswith("x-amz-") and name not in _OVERRIDES
        )
        chooser = chosen[0] if chosen else ""
        if chooser == "versionId" and request.query["versionId"] in ("", "null"):  # the only version of an object
            chooser = ""
        found = self._operations.get((request.method, level, chooser))
        if found is None or len(chosen) > 1:
            what = f"{request.method} of {level}s" + (f" with {', '.join(chosen)}" if chosen else "")
            raise ServiceError("NotImplemented", f"fleetfit's S3 server does not support {what}.", 501)
        for name in request.headers:
            if name.startswith(_REFUSED) or name == "x-amz-tagging":
                raise ServiceError("NotImplemented", f"fleetfit's S3 server does not support {name}.", 501)
        if "partNumber" in request.query and chooser != "uploadId" and request.method not in ("GET", "HEAD"):
            raise ServiceError("InvalidArgument", "A part needs the uploadId of its upload.")
        return found(request)

    def sweep(self) -> None:
        """Remove the incomplete objects and uploads that killed servers have left."""
        with os.scandir(self.folder) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
        for name in names:
            with contextlib.suppress(OSError, ServiceError):  # a request for the bucket reports the error
                Bucket(self.folder / name).sweep()

    # --- buckets ---

    def _bucket(self, name: str) -> Bucket:
        found = bucket_of(self.folder, name)
        if found is None:
            raise no_such_bucket()
        return found

    def _list_buckets(self, request: Request) -> Reply:
        prefix, after = request.query.get("prefix", ""), _key_of(request.query.get("continuation-token", ""))
        most = request.number("max-buckets", 10_000, 1, 10_000)
        with os.scandir(self.folder) as entries:
            buckets = {entry.name: entry for entry in entries if entry.is_dir(follow_symlinks=False)}
        names = sorted(
            name for name in buckets if name.startswith(prefix) and not name.startswith(".") and name > after
        )
        found: list[documents.Node] = []
        for name in names[:most]:
            date = documents.time(buckets[name].stat().st_mtime_ns)
            found.append(("Bucket", [("Name", name), ("CreationDate", date)]))
        more: list[documents.Node] = []
        if len(names) > most:
            more.append(("ContinuationToken", _token_of(names[most - 1])))
        return requests.document(("ListAllMyBucketsResult", [_OWNER, ("Buckets", found), *more]))

    def _create_bucket(self, request: Request) -> Reply:
        asked = request.document()
        if not _NAME.fullmatch(request.bucket) or ".." in request.bucket:
            raise ServiceError(
                "InvalidBucketName",
                "The specified bucket is not valid: a name has 3 to 63 small letters, digits, '-' and '.'.",
            )
        try:
            (self.folder / request.bucket).mkdir()
        except FileExistsError:
            # As in us-east-1, creating one's own bucket again is not an error.
            if asked.strip() and documents.text_of(documents.read(asked), "LocationConstraint"):
                raise ServiceError(
                    "BucketAlreadyOwnedByYou",
                    "Your previous request to create the named bucket succeeded and you already own it.",
                    409,
                ) from None
        return Reply(headers={"location": f"/{request.bucket}"})

    def _head_bucket(self, request: Request) -> Reply:
        self._bucket(request.bucket)
        return Reply(headers={"x-amz-bucket-region": request.region or "us-east-1"})

    def _delete_bucket(self, request: Request) -> Reply:
        bucket = self._bucket(request.bucket)
        if next(bucket.walk(), None) is None:
            for upload in uploads.uploads(bucket):
                uploads.end(bucket, upload)
            bucket.sweep()
            for folder, _, _ in os.walk(bucket.folder, topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(folder)
        if bucket.folder.exists():
            raise ServiceError("BucketNotEmpty", "The bucket you tried to delete is not empty", 409)
        return Reply(204)

    def _location(self, request: Request) -> Reply:
        self._bucket(request.bucket)
        region = "" if request.region == "us-east-1" else request.region
        return requests.document(("LocationConstraint", region))

    def _versioning(self, request: Request) -> Reply:
        self._bucket(request.bucket)
        return requests.document(("VersioningConfiguration", []))

    def _acl(self, request: Request) -> Reply:
        bucket = self._bucket(request.bucket)
        if request.key:
            objects.open_object(bucket, request.key).close()
        grant: documents.Node = ("Grant", [("Grantee", [("ID", "fleetfit")]), ("Permission", "FULL_CONTROL")])
        return requests.document(("AccessControlPolicy", [_OWNER, ("AccessControlList", [grant])]))

    # --- lists ---

    def _list_objects(self, request: Request) -> Reply:
        bucket = self._bucket(request.bucket)
        query = request.query
        second = query.get("list-type") == "2"
        if query.get("list-type", "2") != "2" or (coding := query.get("encoding-type", "")) not in ("", "url"):
            raise ServiceError("InvalidArgument", "list-type must be 2, and encoding-type must be url.")
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        most = request.number("max-keys", _MOST, 0, _MOST)
        after = query.get("start-after" if second else "marker", "")
        if second and "continuation-token" in query:
            after = _key_of(query["continuation-token"])
        found: list[documents.Node] = []
        last, rolled, count, more = "", False, 0, False
        for name, is_prefix in bucket.walk(prefix, after, delimiter):
            if count == most:
                more = most > 0
                break
            if (node := _listed(bucket, name, is_prefix, coding)) is not None:
                found.append(node)
                last, rolled, count = name, is_prefix, count + 1
        head: list[documents.Node] = [
            ("Name", request.bucket), ("Prefix", documents.coded(prefix, coding)), ("MaxKeys", str(most)),
            ("IsTruncated", "true" if more else "false"),
        ]  # fmt: skip
        if delimiter:
            head.append(("Delimiter", documents.coded(delimiter, coding)))
        if coding:
            head.append(("EncodingType", coding))
        for name in ("start-after", "continuation-token") if second else ():
            if name in query:
                shown = query[name] if name == "continuation-token" else documents.coded(query[name], coding)
                head.append((name.title().replace("-", ""), shown))
        if second:
            head.append(("KeyCount", str(count)))
        else:
            head.append(("Marker", documents.coded(query.get("marker", ""), coding)))
        if more:
            if second:
                head.append(("NextContinuationToken", _token_of(behind(last) if rolled else last)))
            else:
                head.append(("NextMarker", documents.coded(last, coding)))
        return requests.document(("ListBucketResult", [*head, *found]))

    # --- objects ---

    def _get_object(self, request: Request) -> Reply:
        file = objects.open_object(self._bucket(request.bucket), request.key)
        try:
            described = objects.describe(file, request.key)
            headers = requests.object_headers(described)
            try:
                requests.check_conditions(request.headers, described)
            except ServiceError as error:
                if error.code != "PreconditionFailed" or not _only_newer(request.headers):
                    raise
                file.close()
                return Reply(304, headers)
            for name, value in request.query.items():
                if name in _OVERRIDES:
                    headers[_OVERRIDES[name]] = _as_header(name, value)
            if request.query.get("partNumber") is not None:
                part = _only_part(request, described)
            else:
                part = requests.part_of(request.headers.get("range"), described.size)
            if part is None:
                return Reply(200, headers, file=file, count=described.size)
            start, count = part
            headers["content-range"] = f"bytes {start}-{start + count - 1}/{described.size}"
            return Reply(206, headers, file=file, start=start, count=count)
        except BaseException:
            file.close()
            raise

    def _put_object(self, request: Request) -> Reply:
        if "x-amz-copy-source" in request.headers:
            return self._copy_object(request)
        headers = objects.own_headers(request.headers)
        bucket = self._bucket(request.bucket)
        with objects.staging(bucket) as (staged, file):
            etag = objects.receive(request.body, file, request.headers, request.digest)
            stored = objects.finish(file, etag, headers)
            _place(request, bucket, staged)
        return Reply(headers={"etag": f'"{stored.etag}"'})

    def _copy_object(self, request: Request) -> Reply:
        directive = request.headers.get("x-amz-metadata-directive", "COPY")
        with self._source(request) as source:
            described = objects.describe(source, request.key)
            bucket = self._bucket(request.bucket)
            with objects.staging(bucket) as (staged, file):
                objects.copy(source, file, 0, described.size)
                headers = described.headers if directive == "COPY" else objects.own_headers(request.headers)
                # A copy is a single object, even if its source was uploaded in parts.
                etag = objects.digest_of(file) if "-" in described.etag else described.etag
                stored = objects.finish(file, etag, headers)
                _place(request, bucket, staged)
        return requests.document(("CopyObjectResult", _copied(stored)))

    def _delete_object(self, request: Request) -> Reply:
        bucket = self._bucket(request.bucket)
        with bucket.locked():
            if "if-match" in request.headers:
                requests.check_conditions(request.headers, _described(bucket, request.key))
            bucket.delete(request.key)
        return Reply(204)

    def _delete_objects(self, request: Request) -> Reply:
        bucket = self._bucket(request.bucket)
        root = documents.read(request.document())
        wanted = root.findall("Object")
        if not wanted or len(wanted) > _MOST:
            raise documents.malformed()
        answers: list[documents.Node] = []
        for element in wanted:
            key = documents.text_of(element, "Key")
            if key is None:
                raise documents.malformed()
            try:
                self._delete_one(bucket, key, element)
            except ServiceError as error:
                answers.append(("Error", [("Key", key), ("Code", error.code), ("Message", error.message)]))
            except OSError as error:
                answers.append(("Error", [("Key", key), ("Code", "InternalError"), ("Message", str(error))]))
            else:
                if documents.text_of(root, "Quiet") != "true":
                    answers.append(("Deleted", [("Key", key)]))
        return requests.document(("DeleteResult", answers))

    def _delete_one(self, bucket: Bucket, key: str, asked: ET.Element) -> None:
        """Delete one of several objects. Raise an error if the object does not match the given ETag or version."""
        requests.check_key(key)
        for name in ("LastModifiedTime", "Size"):
            if documents.text_of(asked, name) is not None:
                raise ServiceError("NotImplemented", f"fleetfit's S3 server does not support {name} here.", 501)
        if (documents.text_of(asked, "VersionId") or "null") != "null":
            raise ServiceError(
                "NoSuchVersion", "The specified version does not exist; buckets have no versions here.", 404
            )
        etag = documents.text_of(asked, "ETag")
        with bucket.locked():
            if etag is not None:
                requests.check_conditions({"if-match": etag}, _described(bucket, key))
            bucket.delete(key)

    def _tagging(self, request: Request) -> Reply:
        objects.open_object(self._bucket(request.bucket), request.key).close()
        return requests.document(("Tagging", [("TagSet", [])]))

    def _source(self, request: Request) -> BinaryIO:
        """Open the source object of a copy."""
        place, _, version = request.headers["x-amz-copy-source"].partition("?")
        name, key = requests.split(place)
        if not name or not key or version not in ("", "versionId=null"):
            raise ServiceError("InvalidArgument", "The copy source must have the form BUCKET/KEY.")
        source = objects.open_object(self._bucket(name), key)
        try:
            requests.check_conditions(request.headers, objects.describe(source, key), "x-amz-copy-source-")
        except BaseException:
            source.close()
            raise
        return source

    # --- uploads in parts ---

    def _begin_upload(self, request: Request) -> Reply:
        bucket = self._bucket(request.bucket)
        upload = uploads.begin(bucket, request.key, objects.own_headers(request.headers))
        return requests.document(
            (
                "InitiateMultipartUploadResult",
                [("Bucket", request.bucket), ("Key", request.key), ("UploadId", upload.name)],
            )
        )

    def _put_part(self, request: Request) -> Reply:
        bucket = self._bucket(request.bucket)
        upload = uploads.find(bucket, request.query["uploadId"], request.key)
        number = request.number("partNumber", 0, 1, 100_000)
        if number > 10_000:
            raise ServiceError("InvalidArgument", "Part number must be an integer between 1 and 10000, inclusive")
        copied = "x-amz-copy-source" in request.headers
        with objects.staging(bucket) as (staged, file):
            if copied:
                with self._source(request) as source:
                    size = os.fstat(source.fileno()).st_size
                    text = request.headers.get("x-amz-copy-source-range")
                    start, count = requests.part_of(text, size) or (0, size)
                    objects.copy(source, file, start, count)
                etag = objects.digest_of(file)
            else:
                etag = objects.receive(request.body, file, request.headers, request.digest)
            described = objects.finish(file, etag, {})
            uploads.add(bucket, upload, number, staged, etag)
        if copied:
            return requests.document(("CopyPartResult", _copied(described)))
        return Reply(headers={"etag": f'"{described.etag}"'})

    def _list_parts(self, request: Request) -> Reply:
        upload = uploads.find(self._bucket(request.bucket), request.query["uploadId"], request.key)
        after = request.number("part-number-marker", 0, 0, 10_000)
        most = request.number("max-parts", _MOST, 1, _MOST)
        last = {part.number: part for part in upload.parts()}  # the latest part of each number
        rest = [part for part in last.values() if part.number > after]
        parts = rest[:most]
        nodes: list[documents.Node] = [
            ("Bucket", request.bucket), ("Key", request.key), ("UploadId", upload.name),
            ("PartNumberMarker", str(after)), ("MaxParts", str(most)), ("StorageClass", "STANDARD"),
            ("NextPartNumberMarker", str(parts[-1].number if parts else 0)),
            ("IsTruncated", "true" if len(rest) > most else "false"),
        ]  # fmt: skip
        for part in parts:
            state = part.path.stat()
            nodes.append(
                (
                    "Part",
                    [
                        ("PartNumber", str(part.number)), ("LastModified", documents.time(state.st_mtime_ns)),
                        ("ETag", f'"{part.etag}"'), ("Size", str(state.st_size)),
                    ],
                )
            )  # fmt: skip
        return requests.document(("ListPartsResult", nodes))

    def _list_uploads(self, request: Request) -> Reply:
        coding, prefix = request.query.get("encoding-type", ""), request.query.get("prefix", "")
        nodes: list[documents.Node] = [("Bucket", request.bucket), ("IsTruncated", "false")]
        for upload in uploads.uploads(self._bucket(request.bucket)):
            if upload.key.startswith(prefix):
                key, begun = documents.coded(upload.key, coding), documents.time(upload.begun)
                nodes.append(("Upload", [("Key", key), ("UploadId", upload.name), ("Initiated", begun)]))
        return requests.document(("ListMultipartUploadsResult", nodes))

    def _complete_upload(self, request: Request) -> Reply:
        bucket = self._bucket(request.bucket)
        wanted = []
        for element in documents.read(request.document()).findall("Part"):
            number, etag = documents.text_of(element, "PartNumber"), documents.text_of(element, "ETag")
            if etag is None or number is None or not re.fullmatch(r"\d{1,5}", number.strip(), re.ASCII):
                raise documents.malformed()
            wanted.append((int(number), etag.strip()))
        name = request.query["uploadId"]
        asked = (request.bucket, request.key, name)
        try:
            with uploads.find(bucket, name, request.key).locked():
                upload = uploads.find(bucket, name, request.key)
                with objects.staging(bucket) as (staged, file):
                    stored = objects.finish(file, uploads.complete(upload, wanted, file), upload.headers)
                    _place(request, bucket, staged)
                with self._lock:
                    self._completed[asked] = stored.etag
                    while len(self._completed) > _REMEMBERED:
                        self._completed.popitem(last=False)
                uploads.end(bucket, upload)
        except (ServiceError, FileNotFoundError):
            if asked not in self._completed:  # otherwise another request has completed the upload
                raise
        place = f"/{request.bucket}/{urllib.parse.quote(request.key)}"
        etag = f'"{self._completed[asked]}"'
        nodes = [("Location", place), ("Bucket", request.bucket), ("Key", request.key), ("ETag", etag)]
        return requests.document(("CompleteMultipartUploadResult", nodes))

    def _abort_upload(self, request: Request) -> Reply:
        bucket = self._bucket(request.bucket)
        uploads.end(bucket, uploads.find(bucket, request.query["uploadId"], request.key))
        return Reply(204)


def _place(request: Request, bucket: Bucket, staged: Path) -> None:
    """Turn a staged file into the requested object, if the request's conditions hold at this time."""
    with bucket.locked():
        if any(name in request.headers for name in ("if-match", "if-none-match")):
            requests.check_conditions(request.headers, _described(bucket, request.key))
        bucket.place(staged, request.key)


def _described(bucket: Bucket, key: str) -> Described | None:
    try:
        with objects.open_object(bucket, key) as file:
            return objects.describe(file, key)
    except ServiceError:
        return None


def _listed(bucket: Bucket, name: str, is_prefix: bool, coding: str) -> documents.Node | None:
    """Return a key's entry for a list of objects. Return None if the object was deleted."""
    if is_prefix:
        return "CommonPrefixes", [("Prefix", documents.coded(name, coding))]
    path = bucket.find(name)
    described = objects.glance(path, name) if path is not None else None
    if described is None:
        return None
    return (
        "Contents",
        [
            ("Key", documents.coded(name, coding)), ("LastModified", documents.time(described.modified)),
            ("ETag", f'"{described.etag}"'), ("Size", str(described.size)), ("StorageClass", "STANDARD"),
        ],
    )  # fmt: skip


def _copied(stored: Described) -> list[documents.Node]:
    return [("ETag", f'"{stored.etag}"'), ("LastModified", documents.time(stored.modified))]


def _only_newer(headers: Mapping[str, str]) -> bool:
    """Return whether a failed condition of a request means that the client has the object's current content.

    The response to such a request has the HTTP status 304.
    """
    return "if-match" not in headers and ("if-none-match" in headers or "if-modified-since" in headers)


def _as_header(name: str, value: str) -> str:
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        raise ServiceError("InvalidArgument", f"{name} has characters that a header cannot have.") from None
    return value


def _only_part(request: Request, described: Described) -> tuple[int, int] | None:
    """Return the start and the length of the part that ``partNumber`` requests: part 1 of an object that has one part.

    This part is the whole object. Return None for an empty object.

    Raises:
        ServiceError: the object has several parts, or a part other than the first is requested.
    """
    if "-" in described.etag and not described.etag.endswith("-1"):
        raise ServiceError("NotImplemented", "fleetfit's S3 server does not send single parts of objects.", 501)
    if request.query["partNumber"] != "1":
        raise ServiceError("InvalidPartNumber", "The requested partnumber is not satisfiable", 416)
    return (0, described.size) if described.size else None


def _token_of(key: str) -> str:
    return base64.urlsafe_b64encode(key.encode("utf-8")).decode()


def _key_of(token: str) -> str:
    try:
        return base64.b64decode(token, altchars=b"-_", validate=True).decode("utf-8")
    except ValueError:
        raise ServiceError("InvalidArgument", "The continuation token provided is incorrect") from None
