#!/usr/bin/env python3
"""Scores translations."""

import sys

from powernorm_fairseq.experiments.score import main

if __name__ == "__main__":
    sys.exit(main())
