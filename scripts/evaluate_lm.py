#!/usr/bin/env python3
"""Measures the perplexity of a language model."""

import sys

from powernorm_fairseq.experiments.evaluate_lm import main

if __name__ == "__main__":
    sys.exit(main())
