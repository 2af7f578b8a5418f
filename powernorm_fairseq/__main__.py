"""Prints the plugin's folder: ``fairseq-train --user-dir "$(python -m powernorm_fairseq)" ...``."""

import os

if __name__ == "__main__":
    print(os.path.dirname(os.path.realpath(__file__)))
