"""Run hosts on the nodes of a Slurm cluster. sbatch requests allocations, and srun starts an agent on each node."""
