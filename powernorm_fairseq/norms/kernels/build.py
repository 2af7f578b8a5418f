"""Compiles the C++ operators when the package is built; ``pyproject.toml`` names this command.

They are optional: without a C++ compiler, or with a torch that lacks the stable ABI they use, the package is built
without them and plain torch does their work. The reason goes into the package, where ``kernels.describe()`` finds it.
"""

import re
import site
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Optional

from setuptools.command.build_ext import build_ext

OLDEST_TORCH = (2, 10)
AGAIN = "then install this package again with --force-reinstall --no-deps"
FLAGS = ["-std=c++20", "-O3", "-g0", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math", "-fvisibility=hidden"]


def find_torch() -> Optional[Path]:
    """The folder of the torch that the package is built for; nobody has to be able to import it.

    pip builds with the Python that it installs into, but where nothing can be imported except setuptools. The
    site-packages of that Python are known all the same.
    """
    places = [*site.getsitepackages(), site.getusersitepackages()]
    found = find_spec("torch") or PathFinder.find_spec("torch", places)
    return Path(found.origin).parent if found is not None and found.origin else None


def why_not(torch: Optional[Path]) -> Optional[str]:
    """What keeps the operators from being compiled with this torch; None if nothing does."""
    needs = "torch >= {}.{}".format(*OLDEST_TORCH)
    if torch is None:
        again = AGAIN + ", and with --no-build-isolation if torch was there"
        return "no torch was found when the package was built; install {}, {}".format(needs, again)
    version = re.search(r"__version__ = ['\"]([^'\"]+)", (torch / "version.py").read_text()).group(1)  # type: ignore[union-attr]
    if tuple(map(int, version.split(".")[:2])) < OLDEST_TORCH:
        return "the package was built with torch {}; install {}, {}".format(version, needs, AGAIN)
    return None


class BuildKernels(build_ext):
    """``build_ext`` against the torch that the package is built for."""

    def build_extension(self, extension: Any) -> None:
        """Compiles, or says in one line why not."""
        torch = find_torch()
        reason = why_not(torch)
        if torch is not None and reason is None:
            extension.include_dirs, extension.library_dirs = [str(torch / "include")], [str(torch / "lib")]
            extension.libraries, extension.extra_compile_args = ["torch_cpu"], FLAGS
            try:
                self.force = True  # what an earlier build left may be for another torch
                super().build_extension(extension)
            except Exception as error:  # each compiler has its own
                said = " ".join(str(error).split())
                reason = "the C++ compiler failed ({}); install g++ 10 or later, {}".format(said, AGAIN)
        if reason is not None:
            self.warn("left out the C++ operators: " + reason)
        _note(Path(self.get_ext_fullpath(extension.name)), reason)
        if self.editable_mode:
            _note(Path(__file__).resolve().with_name(Path(self.get_ext_filename("_rows")).name), reason)


def _note(library: Path, reason: Optional[str]) -> None:
    """Leaves beside ``library`` why there is none, and removes what an earlier build left there."""
    library.parent.mkdir(parents=True, exist_ok=True)
    note = library.with_suffix(".txt")
    for old in [note] if reason is None else [note, library]:
        if old.exists():
            old.unlink()
    if reason is not None:
        note.write_text(reason + "\n")
