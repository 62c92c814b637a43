# Sourced by the other scripts: the environment that setup.sh makes and the others run in.
# VENV chooses another one; default: .venv next to scripts.
venv=${VENV:-$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.venv}
gdpo=$venv/bin/gdpo-verl
export PYTHONDONTWRITEBYTECODE=    # container images often set it; verl's many processes need bytecode

need_environment() {
  if [ ! -x "$gdpo" ]; then
    echo "expected gdpo-verl in $venv, found none: run scripts/setup.sh, or set VENV" >&2
    exit 1
  fi
}
