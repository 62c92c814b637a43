#!/usr/bin/env bash
# Make the virtual environment .venv: gdpo-verl with verl, Ray and vLLM, in the versions that were
# tested together. Safe to run again: does nothing when nothing changed, and starts again where it
# was interrupted. An environment that is there already gets these versions.
#
#   scripts/setup.sh                       for the GPU that this machine has, or for none
#   scripts/setup.sh cpu|gpu [EXTRA ...]   overrides what it finds; EXTRA is test (what the tests
#                                          need) or data (the packages of two data sets)
#
# The versions are in requirements/*.lock, with the hashes of the files; a file that has another
# hash is not installed. uv installs them. Where the PATH does not have the uv of requirements/uv.lock,
# pip first installs it into the environment. PYTHON chooses the interpreter (3.10 to 3.12; default
# python3).
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
python=${PYTHON:-python3}

nothing="nothing was installed; see above. Without a network set HTTPS_PROXY, or PIP_INDEX_URL to a \
mirror of PyPI that has the package"
fail() { printf 'setup: %s\n' "$1" >&2; exit 1; }

# --- what is wanted -------------------------------------------------------------------------------
has_gpu() { nvidia-smi -L > /dev/null 2>&1 || compgen -G '/dev/nvidia[0-9]*' > /dev/null; }
if [ $# -gt 0 ]; then hardware=$1; shift; elif has_gpu; then hardware=gpu; else hardware=cpu; fi
case $hardware in
  cpu | gpu) ;;
  *) echo "usage: scripts/setup.sh [cpu|gpu [EXTRA ...]]" >&2; exit 2 ;;
esac
locks=()
for name in $hardware "$@"; do
  case $name in
    cpu | gpu | test | data) ;;
    *) fail "expected test or data as an EXTRA, found $name" ;;
  esac
  locks+=(--requirement "requirements/$name.lock")
done
wanted="$hardware $* $(cat pyproject.toml requirements/*.lock | cksum) $PWD"
state=$venv/setup      # what is installed; "unfinished" while that is not so
found=$(cat "$state" 2> /dev/null || true)
if [ "$found" = "$wanted" ]; then exit 0; fi

# --- what cannot work -----------------------------------------------------------------------------
case $venv in
  *[[:space:]]*) fail "expected a path without spaces, from which Ray can start workers, found $venv: move it" ;;
esac
if ! "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))'; then
  fail "expected Python 3.10 to 3.12, found $("$python" --version); set PYTHON to another one"
fi
# gpu.lock's torch is built for CUDA 13, which runs from this driver on.
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2> /dev/null | head -n 1 || true)
if [ $hardware = gpu ] && [ -n "$driver" ] && [ "${driver%%.*}" -lt 580 ]; then
  fail "expected NVIDIA's driver 580 or newer, found $driver: update it, or run scripts/setup.sh cpu"
fi

# --- the environment ------------------------------------------------------------------------------
log=$(mktemp)
made=
finish() {
  rm -f "$log"
  if [ -n "$made" ] && [ "$(cat "$state")" = unfinished ]; then rm -rf "$venv"; fi
  if [ ! -d "$venv" ] && [ -d "$venv.old" ]; then mv "$venv.old" "$venv"; fi
  rm -rf "$venv.old"
}
trap finish EXIT
if [ -n "$found" ] && [ "${found%% *}" != $hardware ]; then
  echo "setup: making $venv again, because it was made for ${found%% *}"
  rm -rf "$venv.old"
  mv "$venv" "$venv.old"    # comes back if this fails
fi
if [ ! -d "$venv" ]; then
  made=yes
  mkdir -p "$venv"
  echo unfinished > "$state"
  "$python" -m venv "$venv" ||
    fail "no virtual environment could be made; on Debian and Ubuntu: apt install python3-venv"
fi
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
configured=$("${pip[@]}" config list) || fail "$venv has no pip: remove it, or set VENV"

# --- uv, which looks where pip is told to look ----------------------------------------------------
pip_setting() { sed -n "s/^[^=]*\.$1='\(.*\)'$/\1/p" <<< "$configured" | tail -n 1; }
if [ -z "${UV_DEFAULT_INDEX:-}" ]; then UV_DEFAULT_INDEX=$(pip_setting index-url); fi
if [ -z "${UV_FIND_LINKS:-}" ]; then UV_FIND_LINKS=$(pip_setting find-links); fi
export UV_DEFAULT_INDEX UV_FIND_LINKS UV_PYTHON_DOWNLOADS=never
pinned=$(sed -n 's/^uv==\([0-9.]*\).*/\1/p' requirements/uv.lock)
uv=$(command -v uv || true)
if [ -z "$uv" ] || [ "$("$uv" --version | cut -d ' ' -f 2)" != "$pinned" ]; then
  "${pip[@]}" install --quiet --no-deps --require-hashes -r requirements/uv.lock || fail "$nothing"
  uv=$venv/bin/uv
fi

# --- the packages ---------------------------------------------------------------------------------
options=(--python "$venv/bin/python" --no-deps --build-constraints requirements/build.lock)
# This clone has no hash, so that it cannot be installed by the same command.
install() {
  "$uv" pip install "${options[@]}" --require-hashes "${locks[@]}" "$@" > "$log" 2>&1 &&
    "$uv" pip install "${options[@]}" --editable . "$@" >> "$log" 2>&1
}
# PyPI has no CPU build of torch; where pip finds none elsewhere, PyTorch's own index has it.
resolve() {
  install --dry-run && return
  grep -q 'torch==.*+cpu' "$log" || return 1
  options+=(--index https://download.pytorch.org/whl/cpu --index-strategy unsafe-best-match)
  install --dry-run
}
give_up() { tail -n 15 "$log" >&2; fail "$1"; }

# Nothing is changed before all packages are known to be available.
resolve || give_up "$nothing"
if [ $hardware = gpu ] && grep -q '^ + torch==.*+cpu' "$log"; then
  fail "expected a build of torch for CUDA, found only a CPU build where pip is told to look \
(PIP_INDEX_URL, PIP_FIND_LINKS); nothing was installed"
fi
echo "setup: installing $(grep -c '^ + ' "$log" || true) packages for $hardware into $venv"
echo unfinished > "$state"
install || give_up "the installation was not finished; run scripts/setup.sh again"
echo "$wanted" > "$state"
echo "setup: done. Next: source $venv/bin/activate, then gdpo-verl doctor; docs/quickstart.md trains"
