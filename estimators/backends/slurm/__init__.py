"""Hosts that are nodes of a Slurm cluster: allocations by sbatch, our toolkit on each node by srun."""
