"""An image that follows SageMaker's contract without our toolkit: a ``train`` program in shell."""

from __future__ import annotations

import tempfile
from pathlib import Path

from estimators.backends.images.engine import ImageEngine

NAME = "fleetfit-test-plain"

#: What it does is told by hyperparameters, which it greps out of the file that SageMaker's contract puts there.
_TRAIN = r"""#!/bin/sh
config=/opt/ml/input/config
has() { grep -q "\"$1\"" $config/hyperparameters.json; }
echo "plain image on $(hostname), $(ls /opt/ml/input/data | tr '\n' ' ')"
cat $config/resourceconfig.json
has fails && { echo "it fails as it was told to" >&2; exit 3; }
has sleeps && { echo "sleeping"; sleep 60 & wait; }
# A host that ends before its address was asked for has none; SageMaker's toolkit waits for all names.
has late && until grep -q "$(hostname)" /etc/hosts; do sleep 0.05; done
has late && [ "$(hostname)" = algo-2 ] && {
  until [ -e /opt/ml/output/go ]; do sleep 0.05; done
  echo "algo-1 is $(getent hosts algo-1 || echo lost), algo-2 is $(getent hosts algo-2)"
}
has writes && id -u > /opt/ml/model/who
for channel in /opt/ml/input/data/*; do
  [ -d "$channel" ] && (cd "$channel" && cat * > /dev/null && echo "$channel: $(cat * | wc -c) bytes")
done
echo weights > /opt/ml/model/weights
"""


def build(engine: ImageEngine, base: str) -> str:
    """Build it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train").write_text(_TRAIN)
        Path(folder, "Dockerfile").write_text(
            f"FROM {base}\nCOPY train /usr/local/bin/train\nRUN chmod 755 /usr/local/bin/train\nVOLUME /scratch\n"
        )
        engine.build(Path(folder), NAME, {})
    return NAME
