"""What ``fleetfit doctor`` says of Spark, and whether it can be used at all; nothing of Spark is imported for it."""

from __future__ import annotations

import importlib.metadata
import os
import shutil

from estimators.backends.hosts.provider import Finding

#: The oldest PySpark whose tasks may ask for whole executors on all cluster managers.
OLDEST = (4, 0)
_INSTALL = "pip install 'fleetfit[spark]'"


def refusal(*, needs_java: bool) -> str | None:
    """Return why Spark cannot be used in this environment, with the remedy; None if it can.

    Args:
        needs_java: Whether a Java virtual machine is to be started here; a session has one already.
    """
    version = _version()
    if version is None:
        return f"PySpark is not installed here; {_INSTALL}."
    if tuple(int(part) for part in version.split(".")[:2] if part.isdecimal()) < OLDEST:
        return f"PySpark {version} is installed here, and {'.'.join(map(str, OLDEST))} or newer is needed: {_INSTALL}."
    if needs_java and _java() is None:
        return "Spark needs Java 17 or newer, and none is here: apt install openjdk-17-jre-headless, or set JAVA_HOME."
    return None


def _version() -> str | None:
    try:
        return importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError:
        return None


def _java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=os.path.join(home, "bin")) if home else shutil.which("java")


def findings() -> list[Finding]:
    """Say whether there are PySpark and Java."""
    version = _version()
    if version is None:
        return [Finding(name="spark", ok=True, text=f"not installed; {_INSTALL} for jobs on Spark's executors")]
    if (reason := refusal(needs_java=True)) is not None:
        return [Finding(name="spark", ok=False, text=reason, remedy=reason)]
    return [Finding(name="spark", ok=True, text=f"PySpark {version}; Java is {_java()}")]
