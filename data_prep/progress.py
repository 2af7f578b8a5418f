"""A progress bar on standard error."""

from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from tqdm import tqdm


def progress_bar(title: str, unit: str, total: Optional[int] = None, done: int = 0) -> "tqdm":
    """Returns a bar to be used as a context manager and moved with ``update``; silent where there is no terminal."""
    from tqdm import tqdm

    return tqdm(desc=title, unit=unit, unit_scale=True, total=total, initial=done, disable=None)
