"""The command line; without arguments the plugin's folder, for ``--user-dir "$(python -m powernorm_fairseq)"``."""

import os
import sys

from powernorm_fairseq import cli

if __name__ == "__main__":
    if sys.argv[1:]:
        sys.exit(cli.main())
    print(os.path.dirname(os.path.realpath(__file__)))
