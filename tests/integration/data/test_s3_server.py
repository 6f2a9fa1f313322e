"""The S3 server as its clients see it."""

from __future__ import annotations

import concurrent.futures
import contextlib
import hashlib
import http.client
import io
import os
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import s3_server
from botocore.config import Config
from botocore.exceptions import ClientError
from waiting import until

from estimators.service.s3 import web
from estimators.service.s3.keys import OWN
from estimators.service.settings import Keys

KEYS = Keys("fleetfit-of-the-test", "secret-of-the-test")
#: Such as other systems write: markers, keys below keys, empty and dotted names, long ones, all letters.
HARD = [
    *("in/", "in/x", "in", "a", "a/b", "a/b/c", "x//y", "/lead", "../up", "./here", "n" * 300, "ü ö+&=%/ß?#", "a-b"),
    *("tab\tand\nline", " spaces ", "*'()~"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The address of a server."""
    (tmp_path / "served" / "bucket").mkdir(parents=True)
    with web.serving(0, tmp_path / "served", KEYS) as server:
        yield server


def at_once(count: int, work: Callable[[int], None]) -> None:
    """Call a function in so many threads, with their numbers; raise what one of them raised."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        list(pool.map(work, range(count)))


def client_of(server: str, secret: str = KEYS.secret_key, config: Config | None = None) -> Any:
    return s3_server.client_of(server, KEYS.access_key, secret, region="eu-west-1", config=config)


def code_of(error: pytest.ExceptionInfo[ClientError]) -> str:
    return str(error.value.response["Error"]["Code"])


def _status(address: str) -> int:
    try:
        with urllib.request.urlopen(address) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_keys_are_keys(server: str, tmp_path: Path) -> None:
    client = client_of(server)
    for key in HARD:
        answer = client.put_object(Bucket="bucket", Key=key, Body=key.encode(), Metadata={"of": "mine"})
        assert answer["ETag"] == f'"{hashlib.md5(key.encode()).hexdigest()}"'
    listed = [entry["Key"] for entry in client.list_objects_v2(Bucket="bucket")["Contents"]]
    assert listed == sorted(HARD, key=str.encode)
    for key in HARD:
        answer = client.get_object(Bucket="bucket", Key=key)
        assert (answer["Body"].read(), answer["Metadata"]) == (key.encode(), {"of": "mine"})
        assert client.head_object(Bucket="bucket", Key=key)["ContentLength"] == len(key.encode())
    for size in (1, 2, 1000):
        for name in ("list_objects", "list_objects_v2"):
            pages = list(
                client.get_paginator(name).paginate(Bucket="bucket", Delimiter="/", PaginationConfig={"PageSize": size})
            )
            prefixes = [entry["Prefix"] for page in pages for entry in page.get("CommonPrefixes", [])]
            assert prefixes == ["../", "./", "/", "a/", "in/", "x/", "ü ö+&=%/"]
            assert {entry["Key"] for page in pages for entry in page.get("Contents", [])} == {
                key for key in HARD if "/" not in key
            }
    deleted = client.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": key} for key in (*HARD, "no")]})
    assert len(deleted["Deleted"]) == len(HARD) + 1
    assert os.listdir(tmp_path / "served" / "bucket") == []
    client.delete_bucket(Bucket="bucket")
    assert os.listdir(tmp_path / "served") == []


def test_files_are_objects_and_folders_are_buckets(server: str, tmp_path: Path) -> None:
    client = client_of(server)
    folder = tmp_path / "served" / "bucket"
    (folder / "train").mkdir()
    (folder / "train" / "part.csv").write_bytes(b"1,2")
    answer = client.get_object(Bucket="bucket", Key="train/part.csv")
    assert (answer["Body"].read(), answer["ContentType"]) == (b"1,2", "text/csv")
    assert answer["ETag"] == f'"{hashlib.md5(b"1,2").hexdigest()}"'
    (folder / "train" / "part.csv").write_bytes(b"3,4")  # of the same size
    assert client.head_object(Bucket="bucket", Key="train/part.csv")["ETag"] == f'"{hashlib.md5(b"3,4").hexdigest()}"'
    client.put_object(Bucket="bucket", Key="train/new", Body=b"new")
    assert (folder / "train" / "new").read_bytes() == b"new"
    assert OWN not in os.listdir(folder)
    with (tmp_path / "served" / "bucket" / "large").open("wb") as file:
        file.truncate(1 << 40)  # whose MD5 would take half an hour
    (entry,) = client.list_objects_v2(Bucket="bucket", Prefix="large")["Contents"]
    assert entry["Size"] == 1 << 40 and "-" in entry["ETag"]
    assert client.head_object(Bucket="bucket", Key="large")["ETag"] == entry["ETag"]
    assert client.get_object(Bucket="bucket", Key="large", Range="bytes=7-9", IfMatch=entry["ETag"])[
        "Body"
    ].read() == bytes(3)
    for name in ("abc", "abd", "xyz"):
        (tmp_path / "served" / name).mkdir()
    pages = list(client.get_paginator("list_buckets").paginate(PaginationConfig={"PageSize": 2}))
    assert [[entry["Name"] for entry in page["Buckets"]] for page in pages] == [["abc", "abd"], ["bucket", "xyz"]]
    assert [entry["Name"] for entry in client.list_buckets(Prefix="ab")["Buckets"]] == ["abc", "abd"]
    (tmp_path / "served" / "xyz" / OWN).symlink_to(tmp_path)  # which stops no other bucket
    assert [entry["Name"] for entry in client.list_buckets(Prefix="xyz")["Buckets"]] == ["xyz"]
    with pytest.raises(ClientError, match="is a symbolic link"):
        client.put_object(Bucket="xyz", Key="k", Body=b"1")


def test_large_objects_come_and_go_in_parts(server: str) -> None:
    client = client_of(server)
    content = os.urandom(20 << 20)
    client.upload_fileobj(io.BytesIO(content), "bucket", "one")
    got = io.BytesIO()
    client.download_fileobj("bucket", "one", got)
    assert got.getvalue() == content
    assert client.head_object(Bucket="bucket", Key="one")["ETag"].endswith('-3"')
    client.copy({"Bucket": "bucket", "Key": "one"}, "bucket", "below/one")
    assert client.get_object(Bucket="bucket", Key="below/one")["Body"].read() == content
    for asked, expected in (
        ("bytes=5-9", content[5:10]),
        ("bytes=-4", content[-4:]),
        ("bytes=20971519-", content[-1:]),
    ):
        assert client.get_object(Bucket="bucket", Key="one", Range=asked)["Body"].read() == expected
    with pytest.raises(ClientError) as error:
        client.get_object(Bucket="bucket", Key="one", Range="bytes=20971520-")
    assert code_of(error) == "InvalidRange"
    for content in (b"", b"content"):
        client.put_object(Bucket="bucket", Key="k", Body=content)
        assert client.get_object(Bucket="bucket", Key="k", PartNumber=1)["Body"].read() == content
    with pytest.raises(ClientError) as error:
        client.get_object(Bucket="bucket", Key="k", PartNumber=2)
    assert code_of(error) == "InvalidPartNumber"


def test_uploads_in_parts_are_whole_or_nothing(server: str, tmp_path: Path) -> None:
    client = client_of(server)
    name = client.create_multipart_upload(Bucket="bucket", Key="k", ContentType="text/plain")["UploadId"]
    here = {"Bucket": "bucket", "Key": "k", "UploadId": name}
    first = client.upload_part(**here, PartNumber=1, Body=b"1" * (5 << 20))["ETag"]
    small = client.upload_part(**here, PartNumber=2, Body=b"2")["ETag"]
    last = client.upload_part(**here, PartNumber=3, Body=b"3")["ETag"]
    assert [part["PartNumber"] for part in client.list_parts(**here, MaxParts=2)["Parts"]] == [1, 2]
    assert [one["Key"] for one in client.list_multipart_uploads(Bucket="bucket")["Uploads"]] == ["k"]
    assert "Contents" not in client.list_objects_v2(Bucket="bucket")

    def complete(*parts: tuple[int, str]) -> Any:
        listed = [{"PartNumber": number, "ETag": etag} for number, etag in parts]
        return client.complete_multipart_upload(**here, MultipartUpload={"Parts": listed})

    for parts, code in (
        (((1, first), (2, small), (3, last)), "EntityTooSmall"),
        (((3, last), (1, first)), "InvalidPartOrder"),
        (((1, last),), "InvalidPart"),
        (((4, last),), "InvalidPart"),
    ):
        with pytest.raises(ClientError) as error:
            complete(*parts)
        assert code_of(error) == code
    assert complete((1, first), (3, last))["ETag"].endswith('-2"')
    answer = client.get_object(Bucket="bucket", Key="k")
    assert (answer["Body"].read(), answer["ContentType"]) == (b"1" * (5 << 20) + b"3", "text/plain")
    other = client.create_multipart_upload(Bucket="bucket", Key="k")["UploadId"]
    client.abort_multipart_upload(Bucket="bucket", Key="k", UploadId=other)
    with pytest.raises(ClientError) as error:
        client.upload_part(Bucket="bucket", Key="k", UploadId=other, PartNumber=1, Body=b"x")
    assert code_of(error) == "NoSuchUpload"
    assert os.listdir(tmp_path / "served" / "bucket") == ["k"]


def test_the_last_of_parts_with_one_number_counts_and_completing_twice_is_completing_once(server: str) -> None:
    client = client_of(server)
    here = {"Bucket": "bucket", "Key": "k"}
    here["UploadId"] = client.create_multipart_upload(**here)["UploadId"]
    client.upload_part(**here, PartNumber=1, Body=b"first")
    etag = client.upload_part(**here, PartNumber=1, Body=b"again")["ETag"]
    parts = [{"PartNumber": part["PartNumber"], "ETag": part["ETag"]} for part in client.list_parts(**here)["Parts"]]
    assert parts == [{"PartNumber": 1, "ETag": etag}]
    client.complete_multipart_upload(**here, MultipartUpload={"Parts": parts})
    assert client.get_object(Bucket="bucket", Key="k")["Body"].read() == b"again"
    here = {"Bucket": "bucket", "Key": "once"}
    here["UploadId"] = client.create_multipart_upload(**here)["UploadId"]
    etag = client.upload_part(**here, PartNumber=1, Body=b"1" * (6 << 20))["ETag"]
    whole = {"Parts": [{"PartNumber": 1, "ETag": etag}]}
    found: list[str] = []

    def complete(number: int) -> None:
        found.append(client.complete_multipart_upload(**here, MultipartUpload=whole, IfNoneMatch="*")["ETag"])

    at_once(4, complete)
    assert len(found) == 4 and len(set(found)) == 1


def test_conditions(server: str) -> None:
    client = client_of(server)
    etag = client.put_object(Bucket="bucket", Key="k", Body=b"1")["ETag"]
    for call, more, code in (
        (client.put_object, {"IfNoneMatch": "*", "Body": b"2"}, "PreconditionFailed"),
        (client.put_object, {"IfMatch": '"other"', "Body": b"2"}, "PreconditionFailed"),
        (client.get_object, {"IfMatch": '"other"'}, "PreconditionFailed"),
        (client.get_object, {"IfNoneMatch": etag}, "304"),
    ):
        with pytest.raises(ClientError) as error:
            call(Bucket="bucket", Key="k", **more)
        assert code_of(error) == code
    assert client.get_object(Bucket="bucket", Key="k", IfMatch=etag)["Body"].read() == b"1"
    client.put_object(Bucket="bucket", Key="k", IfMatch=etag, Body=b"3")
    won = []

    def claim(number: int) -> None:
        try:
            client.put_object(Bucket="bucket", Key="lock", IfNoneMatch="*", Body=b"%d" % number)
        except ClientError as error:
            assert error.response["Error"]["Code"] == "PreconditionFailed"
        else:
            won.append(number)

    at_once(8, claim)
    assert len(won) == 1
    assert client.get_object(Bucket="bucket", Key="lock")["Body"].read() == b"%d" % won[0]


def test_two_servers_of_one_folder_have_one_winner(server: str, tmp_path: Path) -> None:
    won = []
    with web.serving(0, tmp_path / "served", KEYS) as other:

        def claim(number: int) -> None:
            client = client_of((server, other)[number % 2])
            for key in ("a", "b/", "c"):
                with contextlib.suppress(ClientError):
                    client.put_object(Bucket="bucket", Key=key, IfNoneMatch="*", Body=b"%d" % number)
                    won.append(key)

        at_once(6, claim)
    assert sorted(won) == ["a", "b/", "c"]


@pytest.mark.parametrize("version", [None, "s3v4"])
def test_signed_addresses(server: str, version: str | None) -> None:
    client = client_of(server, config=Config(signature_version=version) if version else None)
    for key in HARD:
        client.put_object(Bucket="bucket", Key=key, Body=key.encode())
        address = client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": key})
        assert ("X-Amz-Signature" in address) is (version is not None)
        with urllib.request.urlopen(address) as answer:
            assert answer.read() == key.encode()
    address = client.generate_presigned_url("put_object", Params={"Bucket": "bucket", "Key": "sent"})
    request = urllib.request.Request(address, data=b"by address", method="PUT", headers={"Content-Type": ""})
    urllib.request.urlopen(request).close()
    assert client.get_object(Bucket="bucket", Key="sent")["Body"].read() == b"by address"
    for bad in (address.replace("sent", "other"), address[:-1] + ("1" if address[-1] != "1" else "2")):
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(urllib.request.Request(bad, data=b"x", method="PUT", headers={"Content-Type": ""}))
        assert error.value.code in (400, 403)
    late = client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "sent"}, ExpiresIn=1)
    until(lambda: _status(late) == 403)
    client.put_object(Bucket="bucket", Key="source", Body=b"copied")
    asked = {"Bucket": "bucket", "Key": "k", "Metadata": {"of": "mine"}}
    address = client.generate_presigned_url("put_object", Params=asked)
    headers = {"Content-Type": ""} if version is None else {"Content-Type": "", "x-amz-meta-of": "mine"}
    urllib.request.urlopen(urllib.request.Request(address, data=b"by address", method="PUT", headers=headers)).close()
    assert client.head_object(Bucket="bucket", Key="k")["Metadata"] == {"of": "mine"}
    if version is None:
        asked = {"Bucket": "bucket", "Key": "copy", "CopySource": {"Bucket": "bucket", "Key": "source"}}
        address = client.generate_presigned_url("copy_object", Params=asked)
        urllib.request.urlopen(urllib.request.Request(address, method="PUT")).close()
        assert client.get_object(Bucket="bucket", Key="copy")["Body"].read() == b"copied"


def test_a_signed_address_is_good_for_its_own_request_only(server: str, tmp_path: Path) -> None:
    (tmp_path / "served" / "private" / "bucket").mkdir(parents=True)
    (tmp_path / "served" / "private" / "bucket" / "k").write_bytes(b"secret")
    client = client_of(server, config=Config(signature_version="s3v4"))
    client.put_object(Bucket="bucket", Key="k", Body=b"mine")
    address = client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "k"})
    query = address.partition("?")[2]
    host = server[len("http://") :]
    for target in (f"private/bucket/k?{query}", f"http://x/private/bucket/k?{query}", f"//private/bucket/k?{query}"):
        connection = http.client.HTTPConnection(host)
        connection.putrequest("GET", target, skip_host=True)
        connection.putheader("Host", host)
        connection.endheaders()
        answer = connection.getresponse()
        assert answer.status in (400, 403) and b"secret" not in answer.read()
        connection.close()
    # Version 2 does not sign parameters by all of their names.
    address = client_of(server).generate_presigned_url("put_object", Params={"Bucket": "bucket", "Key": "drop"})
    for more in (
        "X-Amz-Copy-Source=/private/bucket/k",
        "x-amz-copy-source=/private/bucket/k",
        "X-Amz-Meta-of=other",
        "%75ploadId=u",
    ):
        request = urllib.request.Request(f"{address}&{more}", b"x", {"Content-Type": ""}, method="PUT")
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(request)
    assert os.listdir(tmp_path / "served" / "bucket") == ["k"]


def test_whoever_has_no_key_gets_nothing(server: str, tmp_path: Path) -> None:
    with pytest.raises(ClientError) as error:
        client_of(server, secret="another-secret").list_buckets()
    assert code_of(error) == "SignatureDoesNotMatch"
    for method in ("GET", "PUT", "DELETE", "POST", "HEAD"):
        for path in ("/", "/bucket", "/bucket/key", "/bucket?delete"):
            connection = http.client.HTTPConnection(server[len("http://") :])
            connection.request(method, path, body=b"x")
            assert connection.getresponse().status == 403
            connection.close()
    assert os.listdir(tmp_path / "served" / "bucket") == []
    client = client_of(server)
    for key in ("k1", "k2"):
        client.put_object(Bucket="bucket", Key=key, Body=b"x")

    def change(request: Any, **_: object) -> None:
        request.body = request.body.replace(b"k1", b"k2")

    client.meta.events.register("before-send.s3.DeleteObjects", change)
    with pytest.raises(ClientError) as error:
        client.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": "k1"}]})
    assert code_of(error) == "XAmzContentSHA256Mismatch"
    assert len(client.list_objects_v2(Bucket="bucket")["Contents"]) == 2


def test_an_upload_that_breaks_off_changes_nothing(server: str, tmp_path: Path) -> None:
    client = client_of(server)
    client.put_object(Bucket="bucket", Key="k", Body=b"before")
    address = client.generate_presigned_url("put_object", Params={"Bucket": "bucket", "Key": "k"})
    connection = http.client.HTTPConnection(server[len("http://") :])
    connection.putrequest("PUT", address[len(server) :])
    connection.putheader("Content-Length", "100")
    connection.endheaders(b"half of it")
    until(lambda: OWN in os.listdir(tmp_path / "served" / "bucket"))
    connection.close()
    until(lambda: os.listdir(tmp_path / "served" / "bucket") == ["k"])
    assert client.get_object(Bucket="bucket", Key="k")["Body"].read() == b"before"
    with pytest.raises(ClientError) as error:
        client.put_object(Bucket="bucket", Key="k", Body=b"x", ContentMD5="AAAAAAAAAAAAAAAAAAAAAA==")
    assert code_of(error) == "BadDigest"
    assert client.get_object(Bucket="bucket", Key="k")["Body"].read() == b"before"


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")
def test_a_full_disk_is_said_and_changes_nothing(server: str, tmp_path: Path) -> None:
    small = tmp_path / "served" / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], check=True)
    try:
        client = client_of(server)
        client.put_object(Bucket="small", Key="k", Body=b"before")
        with pytest.raises(ClientError, match="No space left on device") as error:
            client.put_object(Bucket="small", Key="k", Body=b"x" * (2 << 20))
        assert code_of(error) == "InsufficientStorage"
        assert error.value.response["ResponseMetadata"]["RetryAttempts"] == 0
        assert client.get_object(Bucket="small", Key="k")["Body"].read() == b"before"
        assert os.listdir(small) == ["k"]
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_writing_and_deleting_at_once(server: str, tmp_path: Path) -> None:
    """Folders that are empty go while others put something into them."""

    def work(number: int) -> None:
        client = client_of(server, config=Config(retries={"max_attempts": 0}))
        for turn in range(30):
            client.put_object(Bucket="bucket", Key=f"deep/er/{number}", Body=b"%d" % turn)
            assert client.get_object(Bucket="bucket", Key=f"deep/er/{number}")["Body"].read() == b"%d" % turn
            client.list_objects_v2(Bucket="bucket", Prefix="deep/")
            client.delete_object(Bucket="bucket", Key=f"deep/er/{number}")

    at_once(4, work)
    assert os.listdir(tmp_path / "served" / "bucket") == []


def test_what_is_not_there_is_refused_by_name(server: str) -> None:
    client = client_of(server, config=Config(retries={"max_attempts": 0}))
    for call, words in (
        (lambda: client.put_bucket_policy(Bucket="bucket", Policy="{}"), "NotImplemented.*policy"),
        (lambda: client.get_object(Bucket="none", Key="k"), "NoSuchBucket"),
        (lambda: client.get_object(Bucket="bucket", Key="k"), "NoSuchKey"),
        (lambda: client.create_bucket(Bucket="Upper"), "InvalidBucketName"),
        (lambda: client.put_object(Bucket="bucket", Key="k" * 1025, Body=b""), "KeyTooLong"),
        (lambda: client.put_object(Bucket="bucket", Key="k", Metadata={"m": "x" * 3000}), "MetadataTooLarge"),
        (lambda: client.get_object(Bucket="bucket", Key="k", VersionId="7"), "NotImplemented.*versionId"),
    ):
        with pytest.raises(ClientError, match=words):
            call()
    assert client.list_buckets()["Buckets"][0]["Name"] == "bucket"
    assert client.get_bucket_location(Bucket="bucket")["LocationConstraint"] == "eu-west-1"
    with pytest.raises(ClientError) as error:
        client.put_object(Bucket="none", Key="k", Body=b"x" * (100 << 20))
    assert code_of(error) == "NoSuchBucket"
    with pytest.raises(ClientError) as error:
        client.get_object(Bucket="none", Key="k", ResponseContentDisposition='attachment; filename="€.csv"')
    assert code_of(error) == "NoSuchBucket"
    client.put_object(Bucket="bucket", Key="k", Body=b"1")
    with pytest.raises(ClientError) as error:
        client.get_object(Bucket="bucket", Key="k", ResponseContentDisposition='attachment; filename="€.csv"')
    assert code_of(error) == "InvalidArgument"
    answer = client.get_object(Bucket="bucket", Key="k", ResponseContentType="text/x-mine")
    assert answer["ContentType"] == "text/x-mine"


def test_what_is_not_done_is_not_taken_for_something_else(server: str) -> None:
    client = client_of(server)
    etag = client.put_object(Bucket="bucket", Key="k", Body=b"1")["ETag"]
    for asked, code in (
        ({"VersionId": "7"}, "NoSuchVersion"),
        ({"ETag": '"old"'}, "PreconditionFailed"),
        ({"Size": 5}, "NotImplemented"),
    ):
        answer = client.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": "k", **asked}]})
        assert [error["Code"] for error in answer["Errors"]] == [code] and "Deleted" not in answer
    assert client.get_object(Bucket="bucket", Key="k")["Body"].read() == b"1"
    client.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": "k", "ETag": etag}]})
    assert "Contents" not in client.list_objects_v2(Bucket="bucket")
    client.put_object(Bucket="bucket", Key="k", Body=b"whole")
    for more in (
        {"Tagging": "a=b"},
        {"WriteOffsetBytes": 5},
        {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "k" * 32},
    ):
        with pytest.raises(ClientError, match="does not support x-amz-"):
            client.put_object(Bucket="bucket", Key="k", Body=b"piece", **more)
    address = client.generate_presigned_url(
        "upload_part", Params={"Bucket": "bucket", "Key": "k", "PartNumber": 1, "UploadId": "u"}
    )
    for bad in (address, address.replace("uploadId", "uploadid")):
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(
                urllib.request.Request(bad, data=b"part", method="PUT", headers={"Content-Type": ""})
            )
    assert client.get_object(Bucket="bucket", Key="k")["Body"].read() == b"whole"


def test_metadata_lasts_or_is_refused(server: str, tmp_path: Path) -> None:
    client = client_of(server)
    client.put_object(Bucket="bucket", Key="k", Body=b"1", Metadata={"m": "x" * 2000}, CacheControl="y" * 500)
    with web.serving(0, tmp_path / "served", KEYS) as again:
        assert client_of(again).head_object(Bucket="bucket", Key="k")["Metadata"] == {"m": "x" * 2000}
    for more in ({"CacheControl": "y" * 5000}, {"Metadata": {"m": "x" * 2100}}):
        with pytest.raises(ClientError, match="MetadataTooLarge"):
            client.put_object(Bucket="bucket", Key="k", Body=b"2", **more)
    assert client.get_object(Bucket="bucket", Key="k")["Body"].read() == b"1"
    client.put_object(Bucket="bucket", Key="k", Body=b"1", ContentType="multipart/related; boundary=x")
    assert client.head_object(Bucket="bucket", Key="k")["ContentType"] == "multipart/related; boundary=x"
