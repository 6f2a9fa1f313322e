"""Run hosts on the nodes of a Slurm cluster. sbatch requests allocations, and srun starts our toolkit on each node."""
