"""The library behind ``scripts/``: recipes, training, evaluation; ``slurm`` and ``tables`` build on it."""
