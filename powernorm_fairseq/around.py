"""Functions of others, replaced by ones that call them: where a library offers no seam, as fairseq at many places."""

import functools
from typing import Any, Callable


def around(owner: Any, name: str, mark: str = "") -> Callable[[Callable[..., Any]], None]:
    """A decorator that puts a function in the place of ``owner.name``; it gets what was there as its first argument.

    Args:
        owner: a module, a class or an object.
        name: of the function or method there.
        mark: if given, the replacement is made once: what has this attribute is left as it is.
    """
    original = getattr(owner, name)

    def replace(function: Callable[..., Any]) -> None:
        @functools.wraps(original)
        def replacement(*args: Any, **more: Any) -> Any:
            return function(original, *args, **more)

        if mark:
            setattr(replacement, mark, True)
        if not getattr(original, mark, False):
            setattr(owner, name, replacement)

    return replace
