#!/usr/bin/env bash
# Style, types and tests, of which some train: verl's driver, Ray and vLLM on the cores of this
# machine. Sets itself up. Where Debian's chromium is installed, the pages are opened in it.
#
#   scripts/test.sh [PYTEST ARGUMENTS]           what a change has to pass
#   scripts/test.sh --all [PYTEST ARGUMENTS]     the slow ones, too (docs/developing.md)
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh

# One of the packages of the data sets is built by a C compiler.
scripts/setup.sh cpu test data || {
  scripts/setup.sh cpu test
  echo "the packages of two data sets could not be installed: their tests are skipped" >&2
}
# Next to the packages, not among them: verl imports from any TRL it finds a class that 1.16 lacks.
# ms-swift, too, needs other versions of some packages, and all of its tests are slow.
trainers=(trl)
if [ "${1:-}" = --all ]; then trainers+=(ms_swift); fi
for trainer in "${trainers[@]}"; do
  cmp -s "requirements/$trainer.lock" "$venv/$trainer/installed.lock" && continue
  rm -rf "${venv:?}/$trainer"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
    --target "$venv/$trainer" --requirement "requirements/$trainer.lock"
  cp "requirements/$trainer.lock" "$venv/$trainer/installed.lock"
done

# Ray would run its workers at niceness 15, and tests that run at the same time would starve it.
export RAY_worker_niceness=0
# Ray would treat a node that waits 10 seconds for a core as one that has died.
export RAY_health_check_timeout_ms=60000
# PyTorch's threads would spin while they wait for one that another test keeps from its core.
export OMP_WAIT_POLICY=passive

tier="not slow"
memory=5e6 # kB that a run takes
if [ "${1:-}" = --all ]; then
  shift
  tier=""
  memory=9e6 # a pretrained model's takes 10 GB, a cluster of two nodes 6
fi

# A run waits half of its time: three at once, where there is memory for them.
workers=$(awk -v each=$memory '/^MemAvailable/ { n = int($2 / each); print (n < 1 ? 1 : n > 3 ? 3 : n) }' /proc/meminfo)

"$venv/bin/ruff" check .
"$venv/bin/ruff" format --check .
# It takes one core for a minute or two, at the same time as the tests.
types=$(mktemp)
"$venv/bin/mypy" > "$types" & mypy=$!

status=0
"$venv/bin/python" -m pytest -m "$tier" -q -n "$workers" --dist loadfile --no-loadscope-reorder --durations 30 "$@" ||
  status=$?
wait $mypy || status=1
cat "$types"
rm "$types"
exit $status
