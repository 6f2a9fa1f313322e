"""Counts its ranks."""

import json

from mpi4py import MPI

world = MPI.COMM_WORLD
print("said", json.dumps({"rank": world.rank, "size": world.size, "node": MPI.Get_processor_name()}), flush=True)
