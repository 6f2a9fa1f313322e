"""Counts its ranks."""

import argparse
import json
import os

from mpi4py import MPI

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--name")
parser.add_argument("--model_dir")
args = parser.parse_args()
world = MPI.COMM_WORLD
total = world.allreduce(world.rank + 1)
said = {"rank": world.rank, "size": world.size, "sum": total, "epochs": args.epochs, "name": args.name}
print("said", json.dumps(said), flush=True)
if world.rank == 0:
    for step in range(3):
        print(f"loss: {1 / (step + 1)};", flush=True)
    with open(os.path.join(os.environ["SM_MODEL_DIR"], "weights.txt"), "w") as file:
        file.write(str(total))
