"""Lets ``common.user_dir: powernorm_fairseq`` mean this package in every working folder.

hydra imports this file when it starts. fairseq looks for a plugin in the working folder, which hydra's multirun changes
for each job; what is not found there is looked for among the installed packages.
"""

import functools
import importlib.util
import os
import sys
from typing import Any

NAME = "powernorm_fairseq"


def find(user_dir: Any) -> Any:
    """The package's folder, if ``user_dir`` is its name and the working folder does not have it."""
    spec = None if user_dir != NAME or os.path.isdir(NAME) else importlib.util.find_spec(NAME)
    return user_dir if spec is None else os.path.dirname(os.path.realpath(str(spec.origin)))


def install(utils: Any) -> None:
    """Makes ``fairseq.utils`` look there, too."""
    fairseq_import = utils.import_user_module

    @functools.wraps(fairseq_import)
    def import_user_module(args: Any) -> None:
        if getattr(args, "user_dir", None) == NAME:
            args.user_dir = find(args.user_dir)
        fairseq_import(args)

    utils.import_user_module = import_user_module


if "fairseq.utils" in sys.modules:
    install(sys.modules["fairseq.utils"])
