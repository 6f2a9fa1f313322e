"""Write scikit-learn's bundled digits as TFRecord shards: real data without a download.

There are 1,797 images of 8 × 8 pixels. Each record has ``image`` (64 floats from 0 to 1) and ``label`` (an integer from
0 to 9). The split into training and validation is stratified and always the same. A complete folder is not changed.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from container.formats import example, tfrecord

TRAIN_SHARDS = 8
VALIDATION_SHARDS = 2
VALIDATION_SHARE = 0.2
SEED = 20
PIXEL_MAXIMUM = 16.0
# Increase this number when the records change, so that folders of an older layout are written again.
LAYOUT = 1
# This file is written last, so that an incomplete folder has no such file. It is outside of the channels' folders,
# because in Pipe mode every file of a channel is part of the channel's stream.
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Split:
    """The records of one channel.

    Attributes:
        images: The pixels, from 0 to 1. Shape: (records, 64).
        labels: The digits, from 0 to 9. Shape: (records,).
    """

    images: Sequence[Sequence[float]]
    labels: Sequence[int]


def load_splits() -> dict[str, tuple[Split, int]]:
    """Return the records and the number of shards of each channel, by the channel's name."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    images = (digits.data / PIXEL_MAXIMUM).astype("float32")
    train_x, validation_x, train_y, validation_y = train_test_split(
        images, digits.target, test_size=VALIDATION_SHARE, stratify=digits.target, random_state=SEED
    )
    return {
        "train": (Split(train_x.tolist(), train_y.tolist()), TRAIN_SHARDS),
        "validation": (Split(validation_x.tolist(), validation_y.tolist()), VALIDATION_SHARDS),
    }


def serialized(split: Split, shard: int, shards: int) -> Iterator[bytes]:
    """Yield the serialized records of one shard.

    A shard has every ``shards``-th record of the channel, so that all shards have about the same mix of digits.

    Args:
        split: The records of the channel.
        shard: The number of the shard, from 0.
        shards: The number of shards.
    """
    for image, label in zip(split.images[shard::shards], split.labels[shard::shards], strict=True):
        yield example.encode({"image": image, "label": [label]})


def write_channel(folder: Path, split: Split, shards: int) -> dict[str, int]:
    """Write all shards of one channel, and return the sizes of the files in bytes, by name."""
    folder.mkdir(parents=True)
    names = [f"digits-{shard:05d}-of-{shards:05d}.tfrecord" for shard in range(shards)]
    for shard, name in enumerate(names):
        with (folder / name).open("wb") as file:
            for record in serialized(split, shard, shards):
                file.write(tfrecord.encode(record))
    return {name: (folder / name).stat().st_size for name in names}


def is_complete(output: Path) -> bool:
    """Return whether a folder has all files of this script, in the current layout and with the recorded sizes."""
    try:
        manifest = json.loads((output / MANIFEST).read_text(encoding="utf-8"))
        return manifest["layout"] == LAYOUT and all(
            (output / channel / name).stat().st_size == size
            for channel, sizes in manifest["bytes"].items()
            for name, size in sizes.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def prepare(output: Path) -> bool:
    """Write the folders ``output/train`` and ``output/validation``. Each folder is put in place when it is complete.

    Returns:
        Whether the folders were written. False if they were already complete.
    """
    if is_complete(output):
        return False
    output.mkdir(parents=True, exist_ok=True)
    with (output / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_complete(output):
            return False
        (output / MANIFEST).unlink(missing_ok=True)
        for left_over in output.glob(".staged-*"):
            shutil.rmtree(left_over)
        staged = Path(tempfile.mkdtemp(prefix=".staged-", dir=output))
        sizes = {}
        for channel, (split, shards) in load_splits().items():
            sizes[channel] = write_channel(staged / channel, split, shards)
            if (output / channel).exists():
                (output / channel).rename(staged / f"old-{channel}")
            (staged / channel).rename(output / channel)
        manifest = staged / MANIFEST
        manifest.write_text(json.dumps({"layout": LAYOUT, "bytes": sizes}, indent=1) + "\n", encoding="utf-8")
        manifest.rename(output / MANIFEST)
        shutil.rmtree(staged)
    return True


def main(arguments: Sequence[str]) -> int:
    """Run the script, and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("data/digits"), help="folder to write to")
    parsed = parser.parse_args(arguments)
    written = prepare(parsed.output)
    print(f"{parsed.output}: {'written' if written else 'already complete'}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
