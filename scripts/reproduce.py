#!/usr/bin/env python3
"""Runs what is missing of one of the paper's tables and prints it beside what was published."""

import sys

from powernorm_fairseq.experiments.tables.reproduce import main

if __name__ == "__main__":
    sys.exit(main())
