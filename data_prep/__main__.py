"""``python -m data_prep CORPUS ...``, behind the shell scripts of this folder; ``lm`` is for language modelling."""

import sys

from data_prep import corpora, lm
from data_prep.errors import run_main

if __name__ == "__main__":
    if sys.argv[1:2] == ["lm"]:
        sys.exit(run_main(lm.main, sys.argv[2:]))
    sys.exit(run_main(corpora.main))
