#!/usr/bin/env python3
"""Writes and submits the Slurm job of a training."""

import sys

from powernorm_fairseq.experiments.slurm.submit import main

if __name__ == "__main__":
    sys.exit(main())
