"""A fault while a checkpoint is written leaves half of one behind, under the name that matters.

fairseq writes under a temporary name and renames only the first name of a checkpoint, not its copies
(``checkpoint_best.pt``, ``checkpoint_last.pt``). When writing fails it tries again behind what is already there: the
file then has its final name and cannot be read. Mended by :mod:`powernorm_fairseq.safe_save`.
"""

from typing import Any

from powernorm_fairseq.safe_save import copy_file, save_file


def install() -> None:
    """Makes fairseq save and copy whole files or none; remote paths stay with iopath."""
    from fairseq import checkpoint_utils
    from fairseq.file_io import PathManager

    fairseq_save, fairseq_copy = checkpoint_utils.torch_persistent_save, PathManager.copy

    def torch_persistent_save(obj: Any, filename: str, async_write: bool = False) -> None:
        if async_write or not PathManager.supports_rename(filename):
            fairseq_save(obj, filename, async_write)
        else:
            save_file(obj, filename)

    def copy(src_path: str, dst_path: str, overwrite: bool = False) -> bool:
        if not overwrite or any(PathManager.path_requires_pathmanager(path) for path in (src_path, dst_path)):
            return fairseq_copy(src_path, dst_path, overwrite)
        copy_file(src_path, dst_path)
        return True

    checkpoint_utils.torch_persistent_save = torch_persistent_save
    PathManager.copy = staticmethod(copy)
