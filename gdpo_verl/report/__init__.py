"""Run directories of verl → learning curves, a table and one self-contained page."""

from __future__ import annotations

from gdpo_verl.report.page import write_report
from gdpo_verl.report.refresh import follow_report

__all__ = ["follow_report", "write_report"]
