"""`gdpo-verl report`: learning curves, a table and one self-contained page about several runs."""

from __future__ import annotations

from gdpo_verl.lab.report.page import write_report

__all__ = ["write_report"]
