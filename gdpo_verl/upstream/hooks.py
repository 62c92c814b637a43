"""Change modules of other packages after their import, and wrap their functions."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import wrapt

logger = logging.getLogger(__name__)

Hook = Callable[[Any], None]


def when_imported(name: str) -> Callable[[Hook], Hook]:
    """Call the decorated hook with the module `name` after the module is imported.

    If the module is already imported, the hook is called at once. An exception in the hook is
    logged and not raised, because the code that imports the module would get it. Its next import of
    the module would then succeed without the hook.
    """

    def register(hook: Hook) -> Hook:
        def guarded(module: Any) -> None:
            try:
                hook(module)
            except Exception:  # a run with another estimator continues without our hooks
                logger.exception(
                    "gdpo-verl could not be installed into %s. Run `gdpo-verl doctor`.", name
                )

        wrapt.register_post_import_hook(guarded, name)
        return hook

    return register


def wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace ``owner.name`` with a function that calls ``wrapper(original, *args, **kwargs)``.

    The replacement is a plain function, because Ray can pickle it. Ray cannot pickle wrapt's
    proxies.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(owner, name, wrapped)
