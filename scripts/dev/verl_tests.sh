#!/usr/bin/env bash
# verl's own CPU tests of trainer, agent loop and rewards, without this plug-in and with it: every test
# has to end the same way. Prints what differs, in the manner of diff; status 1 if anything does.
#
#   git clone --depth 1 https://github.com/verl-project/verl CHECKOUT
#   scripts/dev/verl_tests.sh CHECKOUT [PYTEST-ARGUMENT ...]
#
# Of the checkout only the tests are taken: tested is the verl that is installed. Take the version nearest
# to it; a test that fails either way is no difference. PYTHON chooses the interpreter.
set -euo pipefail
[ -d "${1:-}/tests/trainer" ] || { echo "usage: scripts/dev/verl_tests.sh CHECKOUT of verl's repository" >&2; exit 2; }
checkout=$(realpath "$1")
shift
python=${PYTHON:-$(realpath -s "$(dirname "$0")/../../.venv/bin/python")}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cp "$(dirname "$0")/../../tests/waiting.py" "$scratch"
cd "$scratch"    # in the checkout, Python would find its verl before the installed one

mapfile -t files < <(
  find "$checkout"/tests/{trainer,experimental/{agent_loop,reward_loop},workers/reward_manager,utils/reward_score} \
    -name 'test_*_on_cpu.py' | sort
)

# Ray counts a queue's actors against the machine's cores; with fewer than three, a test waits for ever.
cat >more_cpus.py <<'PLUGIN'
def pytest_sessionstart():
    from waiting import start_ray
    start_ray(num_cpus=16)
PLUGIN

outcomes() {    # one line a test, sorted: PASSED path::name
  local status=0
  VERL_USE_EXTERNAL_PLUGINS=$1 PYTHONPATH=$scratch "$python" -m pytest -p more_cpus -p no:cacheprovider \
    -q -rA --tb=no --show-capture=no --no-header --disable-warnings --continue-on-collection-errors \
    --import-mode=importlib --rootdir="$checkout" "${files[@]}" "${@:2}" >"log-$1" 2>&1 || status=$?
  tail -n 1 "log-$1" | sed "s/^/plug-ins $1: /" >&2
  # 1: some tests failed. Anything above is pytest's own trouble, and so is a run without a test that passes.
  if [ "$status" -gt 1 ] || ! grep -q '^PASSED' "log-$1"; then tail -n 30 "log-$1" >&2; exit 2; fi
  grep -E '^(PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS) ' "log-$1" | sed -E '/^(FAILED|ERROR)/s/ - .*//' | sort
}

outcomes none "$@" >without
outcomes auto "$@" >with
if diff --unified=0 without with; then
  echo "the same outcome with and without: $(grep -c '^PASSED' with) tests pass, $(grep -vc '^PASSED' with || true) do not"
else
  exit 1
fi
