#!/usr/bin/env python3
"""Trains small LN and PN models on a made-up corpus and prints their BLEU."""

import sys

from powernorm_fairseq.experiments.tables.demo import main

if __name__ == "__main__":
    sys.exit(main())
