#!/usr/bin/env python3
"""Draws the paper's figures from any run."""

import sys

from powernorm_fairseq.figures.plot import main

if __name__ == "__main__":
    sys.exit(main())
