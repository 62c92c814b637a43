"""Change modules of other packages: after their import, and by wrapping functions."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import wrapt

logger = logging.getLogger(__name__)

Hook = Callable[[Any], None]


def when_imported(name: str) -> Callable[[Hook], Hook]:
    """Call the decorated hook with module `name` after its import, at once if it is imported.

    An exception of the hook is logged and not raised: the importer would get it, and the next
    import would succeed without the hook.
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
    """Replace ``owner.name`` with ``wrapper(original, *args, **kwargs)``.

    The replacement is a plain function, which Ray can pickle; it cannot pickle wrapt's proxies.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(owner, name, wrapped)
