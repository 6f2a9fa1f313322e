"""Reads its share of a channel in Pipe mode, as it comes."""

import json
import os

assert json.loads(os.environ["SM_INPUT_DATA_CONFIG"])["train"]["TrainingInputMode"] == "Pipe"
folder = os.environ.get("SM_CHANNEL_TRAIN", "/opt/ml/input/data/train")
with open(f"{folder}_0", "rb") as pipe:
    print(
        "said", json.dumps({"host": os.environ["SM_CURRENT_HOST"], "lines": pipe.read().decode().split()}), flush=True
    )
