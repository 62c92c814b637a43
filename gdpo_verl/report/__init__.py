"""Run directories of verl → learning curves, a table and one self-contained page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gdpo_verl.report.metrics import RunError, set_aside_metrics
    from gdpo_verl.report.page import write_report
    from gdpo_verl.report.refresh import follow_report

_MODULES = {
    "RunError": "metrics",
    "follow_report": "refresh",
    "set_aside_metrics": "metrics",
    "write_report": "page",
}
__all__ = ["RunError", "follow_report", "set_aside_metrics", "write_report"]


def __getattr__(name: str) -> Any:
    # A training that is followed should not wait for matplotlib.
    if name in _MODULES:
        from importlib import import_module

        return getattr(import_module(f"gdpo_verl.report.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
