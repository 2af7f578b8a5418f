#!/usr/bin/env python3
"""Trains ResNet-20 on images and records its BatchNorm2d layers."""

import sys

from powernorm_fairseq.figures.image_stats import main

if __name__ == "__main__":
    sys.exit(main())
