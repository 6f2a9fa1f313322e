"""A script whose score is best at a learning rate of 0.5."""

import argparse

parser = argparse.ArgumentParser()
parser.add_argument("--learning-rate", type=float)
parser.add_argument("--optimizer")
parser.add_argument("--model_dir")
given = parser.parse_args()
assert given.optimizer in ("sgd", "adam"), given.optimizer
print(f"score: {1 - abs(given.learning_rate - 0.5):.4f};")
