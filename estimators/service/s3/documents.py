"""Read and write the XML of requests and responses."""

from __future__ import annotations

import datetime
import re
import urllib.parse
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from estimators.service.errors import ServiceError

#: A name and its content: a text or child nodes.
Node = tuple[str, "str | Sequence[Node]"]

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
#: The end of the year 9999, in seconds since the epoch.
_LATEST = 253402300799
#: Characters that are not allowed in XML 1.0.
_FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write(root: Node, namespace: str = _NAMESPACE) -> bytes:
    """Return a document as XML. Characters that XML forbids are replaced.

    If the client requests URL encoding, the caller has already encoded these characters.
    """
    element = _element(root)
    if namespace:
        element.set("xmlns", namespace)
    text: str = ET.tostring(element, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode()


def read(data: bytes) -> ET.Element:
    """Return the root of a document. Namespaces are removed from the names of tags.

    Raises:
        ServiceError: the data is not an XML document.
    """
    try:
        root = ET.fromstring(data)
    except (ET.ParseError, ValueError):
        raise malformed() from None
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def text_of(element: ET.Element, name: str) -> str | None:
    """Return the text of a child element. Return None if the element has no such child."""
    child = element.find(name)
    return None if child is None else child.text or ""


def malformed() -> ServiceError:
    """Return the error for a document that cannot be parsed."""
    return ServiceError(
        "MalformedXML", "The XML you provided was not well-formed or did not validate against our schema."
    )


def seconds(nanoseconds: int) -> float:
    """Return a file's time in seconds. Times before 1970 or after 9999 are replaced by the nearest valid time."""
    return min(max(nanoseconds // 1_000_000 / 1000, 0), _LATEST)


def time(nanoseconds: int) -> str:
    """Return a time in the format of S3's documents.

    Args:
        nanoseconds: The time in nanoseconds since 1970.
    """
    moment = datetime.datetime.fromtimestamp(seconds(nanoseconds), tz=datetime.timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"


def coded(text: str, coding: str) -> str:
    """Return a key for a list of objects: URL-encoded if ``coding`` is ``url``, otherwise unchanged."""
    return urllib.parse.quote(text, safe="/-_.~*") if coding == "url" else text


def _element(node: Node) -> ET.Element:
    name, content = node
    element = ET.Element(name)
    if isinstance(content, str):
        element.text = _FORBIDDEN.sub("\ufffd", content)
    else:
        element.extend([_element(child) for child in content])
    return element
