"""Building the image, with one small wheel in place of TensorFlow's."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest
from seen_progress import SeenProgress

from estimators.backends.images import build
from estimators.backends.images.engine import ImageEngine

pytestmark = pytest.mark.timeout(1500)  # the first one has the base made

NAME = "fleetfit-test-build"
_WHEEL = {
    "small.py": "",
    "small-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: small\nVersion: 1\n",
    "small-1.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: a test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    "small-1.dist-info/RECORD": "",
}


def test_a_change_of_our_code_rebuilds_no_layer_below_it(
    base_image: str, engine: ImageEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "small-1-py3-none-any.whl", "w") as archive:
        for name, text in _WHEEL.items():
            archive.writestr(zipfile.ZipInfo(name), text)  # the same bytes each time
    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(build.wheelhouse, "gather", lambda installation, **settings: asked.append(settings) or wheels)
    package = tmp_path / "package"
    shutil.copytree(build.package(), package, ignore=shutil.ignore_patterns(*build.SKIPPED))
    monkeypatch.setattr(build, "package", lambda: package)
    layers, progress = [], SeenProgress()
    for gpu in (False, True):
        (package / "extra.py").write_text(f"GPU = {gpu}\n")
        build.build(engine, name=NAME, base=base_image, gpu=gpu, progress=progress)
        found = engine.ask("inspect an image", "GET", f"/images/{NAME}/json")
        layers.append(found["RootFS"]["Layers"])
        assert found["Config"]["Labels"]["fleetfit.device"] == ("gpu" if gpu else "cpu")
        assert f"NVIDIA_VISIBLE_DEVICES={'all' if gpu else 'void'}" in found["Config"]["Env"]
    assert [settings["gpu"] for settings in asked] == [False, True]
    # Four are ours: the reader of Pipe mode, the toolkit, the program that starts it, and the folder that it starts in.
    # What lies below, sshd and the packages, is not made again.
    assert len(layers[0]) == len(layers[1]) >= 7
    assert layers[0][:-4] == layers[1][:-4] and layers[0][-3] != layers[1][-3]
    steps = [text for text in progress.seen if text.startswith("Step ")]
    assert progress.seen[0] == "sending the files to the engine" and steps[0].startswith("Step 1/")
    assert any("COPY container" in text for text in steps)
