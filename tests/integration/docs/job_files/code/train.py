"""The documented job file's script."""

import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--learning-rate", type=float)
parser.add_argument("--api-key")
args = parser.parse_args()
for epoch in range(args.epochs):
    print(f"loss: {1 / (epoch + 1)}")
