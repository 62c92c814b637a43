"""The two ways in which we change modules of others: when they are imported, and by wrapping."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

import wrapt

logger = logging.getLogger(__name__)

Hook = Callable[[Any], None]


def when_imported(name: str) -> Callable[[Hook], Hook]:
    """Call the decorated hook with module `name` once that is imported, at once if it is.

    What the hook raises is logged: the importer would get the exception, and the next import
    would succeed without the hook.
    """

    def register(hook: Hook) -> Hook:
        def guarded(module: Any) -> None:
            try:
                hook(module)
            except Exception:  # training with another estimator goes on as without us
                logger.exception(
                    "gdpo-verl could not be set up on %s; run `gdpo-verl doctor`", name
                )

        wrapt.register_post_import_hook(guarded, name)
        return hook

    return register


def wrap(owner: Any, name: str, wrapper: Callable[..., Any]) -> None:
    """Replace ``owner.name`` by ``wrapper(original, *args, **kwargs)``.

    A plain function takes its place, which Ray can pickle; wrapt's proxies it cannot.
    """
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return wrapper(original, *args, **kwargs)

    setattr(owner, name, wrapped)
