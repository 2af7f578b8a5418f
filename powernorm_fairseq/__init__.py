"""PowerNorm and its rivals: plain torch layers in ``norms``, and a plugin for fairseq.

Importing the package imports neither torch nor fairseq and changes nothing in them. Its models are registered when
fairseq loads the plugin (``--user-dir``), or at once where fairseq is loaded already. ``fairseq_fixes`` mends fairseq
only when fairseq loads the plugin.
"""

import importlib.util
import os
import pkgutil
import sys
from typing import Any, List

NAME = "powernorm_fairseq"


class _Folder(list):
    """The package's ``__path__``; where fairseq finds the package imported, it asks this whether it is the plugin."""

    def __contains__(self, folder: Any) -> bool:
        ours = any(_same(folder, each) for each in self)
        if ours and _loaded_by_fairseq(self):
            load_plugin()
        return ours


def _same(folder: Any, other: str) -> bool:
    return os.path.realpath(str(folder)) == os.path.realpath(other)


def _loaded_by_fairseq(folders: List[str]) -> bool:
    """Whether ``--user-dir`` names this package: fairseq notes the folder of a plugin before it imports it."""
    utils = sys.modules.get("fairseq.utils")
    noted = getattr(getattr(utils, "import_user_module", None), "memo", ())
    return any(_same(folder, each) for folder in noted for each in folders)


def _register_models() -> None:
    """Imports all that fairseq would import of the plugin."""
    models = importlib.import_module(NAME + ".models")
    for module in pkgutil.iter_modules(list(models.__path__)):
        importlib.import_module(f"{NAME}.models.{module.name}")


def load_plugin() -> None:
    """Registers the models and mends fairseq, as ``--user-dir`` does; for plugins that build on this one.

    Repeating the call changes nothing.
    """
    _register_models()
    importlib.import_module(NAME + ".fairseq_fixes").install()


def _stand_for_the_package(name: str) -> None:
    """Makes the import of a link to this folder by another name the import of the package, which registers once."""
    if NAME not in sys.modules:
        spec = importlib.util.spec_from_file_location(NAME, os.path.realpath(__file__))
        sys.modules[NAME] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[NAME])
    load_plugin()
    for module in [each for each in sys.modules if each == NAME or each.startswith(NAME + ".")]:
        sys.modules[name + module[len(NAME) :]] = sys.modules[module]


if __name__ != NAME:
    _stand_for_the_package(__name__)
else:
    __path__ = _Folder(__path__)
    if _loaded_by_fairseq(__path__):
        load_plugin()
    elif sys.modules.get("fairseq.models") is not None:
        _register_models()
