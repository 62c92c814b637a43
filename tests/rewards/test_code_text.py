"""The program of an answer, read in any text; recipes/code/cases.jsonl has verdicts."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_sandbox import PIECES

from gdpo_verl.rewards.code import find_code


@given(st.text() | st.lists(st.sampled_from(PIECES) | st.text(max_size=3)).map("".join))
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_text_is_read(text):
    for strict in (True, False):
        assert isinstance(find_code(text, "f", strict=strict), str)
