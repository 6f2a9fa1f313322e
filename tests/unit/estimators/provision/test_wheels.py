"""The cache of wheels: whole or absent, whatever happens while it is written."""

from __future__ import annotations

import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from container.system.files import cache_root
from estimators.provision.wheels import WheelCache

MakeWheel = Callable[..., Path]


@pytest.fixture
def cache(tmp_path: Path) -> WheelCache:
    return WheelCache(root=tmp_path / "cache")


def test_what_is_published_is_found(cache: WheelCache, make_wheel: MakeWheel) -> None:
    wheel = make_wheel("demo", "1.0")
    assert cache.find("key") is None
    published = cache.publish("key", wheel)
    assert cache.find("key") == published
    assert published.read_bytes() == wheel.read_bytes()
    assert cache.find("other") is None


def truncate(wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:-1])


def flip_a_bit(wheel: Path) -> None:
    content = bytearray(wheel.read_bytes())
    content[len(content) // 2] ^= 1
    wheel.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, flip_a_bit, Path.unlink])
def test_damage_is_noticed_and_replaced(
    cache: WheelCache, make_wheel: MakeWheel, damage: Callable[[Path], None]
) -> None:
    wheel = make_wheel("demo", "1.0")
    damage(cache.publish("key", wheel))
    assert cache.find("key") is None
    assert cache.find("key") is None
    cache.publish("key", wheel)
    found = cache.find("key")
    assert found is not None
    assert found.read_bytes() == wheel.read_bytes()


def test_a_damaged_wheel_is_not_published(cache: WheelCache, make_wheel: MakeWheel) -> None:
    wheel = make_wheel("demo", "1.0")
    truncate(wheel)
    with pytest.raises(zipfile.BadZipFile):
        cache.publish("key", wheel)
    assert cache.find("key") is None


def test_what_a_crash_left_is_swept_and_never_found(cache: WheelCache, make_wheel: MakeWheel) -> None:
    left_over = cache.root / "wheels" / "key"
    left_over.mkdir(parents=True)
    (left_over / ".staged").write_bytes(b"half")
    assert cache.find("key") is None
    published = cache.publish("key", make_wheel("demo", "1.0"))
    assert list(left_over.iterdir()) == [published]


def test_readers_never_see_a_mixture(cache: WheelCache, make_wheel: MakeWheel) -> None:
    wheels = [make_wheel("demo", "1.0", size=1000), make_wheel("demo", "2.0", size=200_000)]
    contents = [wheel.read_bytes() for wheel in wheels]
    stop = threading.Event()
    seen: list[bytes] = []

    def read() -> None:
        while not stop.is_set():
            found = cache.find("key")
            if found is not None:
                try:
                    seen.append(found.read_bytes())
                except FileNotFoundError:
                    continue  # replaced between finding and reading

    reader = threading.Thread(target=read)
    reader.start()
    for turn in range(60):
        cache.publish("key", wheels[turn % 2])
    stop.set()
    reader.join()
    assert seen
    assert all(content in contents for content in seen)


def test_the_place_is_the_users_choice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLEETFIT_CACHE", str(tmp_path / "mine"))
    assert cache_root() == tmp_path / "mine"
    monkeypatch.delenv("FLEETFIT_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root() == tmp_path / ".cache" / "fleetfit"
