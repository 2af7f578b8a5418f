"""Training as Slurm jobs."""
