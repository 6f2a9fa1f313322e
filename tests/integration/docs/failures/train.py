"""The page's script that fails: rank 3 has a loss that is no number."""

from mpi4py import MPI


def step(rank: int) -> None:
    if rank == 3:
        raise ValueError("loss is nan")


MPI.COMM_WORLD.Barrier()
step(MPI.COMM_WORLD.rank)
