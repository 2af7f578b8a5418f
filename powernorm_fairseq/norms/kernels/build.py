"""Compiles the C++ operators when the package is built; ``pyproject.toml`` names this command.

They are optional: without a C++ compiler, or with a torch that lacks the stable ABI they use, the package is built
without them and plain torch does their work.
"""

from pathlib import Path

from setuptools.command.build_ext import build_ext

OLDEST_TORCH = (2, 10)


class BuildKernels(build_ext):
    """``build_ext`` against the torch of this environment."""

    def build_extensions(self) -> None:
        """Compiles, or says why not."""
        try:
            import torch
        except ImportError:
            torch = None
        if torch is None or tuple(map(int, torch.__version__.split(".")[:2])) < OLDEST_TORCH:
            found = "no torch" if torch is None else "torch " + torch.__version__
            self.warn("left out the C++ kernels: they need torch >= {}.{}, here is {}".format(*OLDEST_TORCH, found))
            self.extensions = []
            return
        folder = Path(torch.__file__).parent
        for extension in self.extensions:
            extension.include_dirs = [str(folder / "include")]
            extension.library_dirs = [str(folder / "lib")]
            extension.libraries = ["torch_cpu"]
            extension.extra_compile_args = ["-std=c++20", "-O3", "-g0", "-fopenmp-simd", "-fno-math-errno"]
            extension.extra_compile_args += ["-fvisibility=hidden"]
        super().build_extensions()
