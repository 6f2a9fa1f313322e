"""The caller's AWS credentials for a job's containers, as a file that only they see."""

from __future__ import annotations

import configparser
import io
import os
from collections.abc import Mapping
from pathlib import Path

_NAMES = {
    "AWS_ACCESS_KEY_ID": "aws_access_key_id",
    "AWS_SECRET_ACCESS_KEY": "aws_secret_access_key",
    "AWS_SESSION_TOKEN": "aws_session_token",
}


def aws_credentials(environment: Mapping[str, str]) -> str | None:
    """Return a shared credentials file with the profile that the caller uses, as ``default``; None without any.

    Variables win over the file, as in boto3. Credentials that have to be fetched (SSO, roles, instance metadata) are
    not: a script that needs them gets them in its ``environment``.
    """
    values = {key: environment[name] for name, key in _NAMES.items() if environment.get(name)}
    if "aws_access_key_id" not in values or "aws_secret_access_key" not in values:
        values = _profile(environment)
    if not values:
        return None
    parser = configparser.RawConfigParser()
    parser["default"] = values
    text = io.StringIO()
    parser.write(text)
    return text.getvalue()


def _profile(environment: Mapping[str, str]) -> dict[str, str]:
    home = environment.get("HOME") or str(Path.home())
    path = environment.get("AWS_SHARED_CREDENTIALS_FILE") or os.path.join(home, ".aws", "credentials")
    parser = configparser.RawConfigParser()
    try:
        parser.read(path, encoding="utf-8")
    except (configparser.Error, OSError, UnicodeDecodeError):
        return {}
    profile = environment.get("AWS_PROFILE") or "default"
    if not parser.has_section(profile):
        return {}
    found = dict(parser.items(profile))
    return {key: found[key] for key in _NAMES.values() if found.get(key)}
