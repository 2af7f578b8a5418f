"""``python -m data_prep CORPUS ...``."""

import sys
from typing import List, Optional

from data_prep import corpora
from data_prep.errors import run_main


def main(argv: Optional[List[str]] = None) -> int:
    """Runs the command line; an error is one sentence. Returns the exit status."""
    return run_main(corpora.main, argv)


if __name__ == "__main__":
    sys.exit(main())
