#!/usr/bin/env python3
"""Averages checkpoints into one, with fairseq's own interface."""

import sys

from powernorm_fairseq.experiments.average import main

if __name__ == "__main__":
    sys.exit(main())
