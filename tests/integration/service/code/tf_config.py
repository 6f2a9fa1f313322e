"""Says what TensorFlow would be told."""

import json
import os

config = json.loads(os.environ["TF_CONFIG"])
cluster = {name: len(tasks) for name, tasks in config["cluster"].items()}
print(
    "said", json.dumps({"host": os.environ["SM_CURRENT_HOST"], "task": config["task"], "cluster": cluster}), flush=True
)
