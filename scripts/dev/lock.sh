#!/usr/bin/env bash
# Write requirements/*.lock anew from pyproject.toml, with the hash of each file, for Python 3.10 to
# 3.12:
#
#   scripts/dev/lock.sh              what is locked stays where it still fits
#   scripts/dev/lock.sh --upgrade    the newest of everything
#
# cpu.lock and gpu.lock are complete; test.lock and data.lock are what the tests and two of the data
# sets need on top of either. uv.lock is the installer itself, and build.lock is what builds the
# packages that have no wheel. The hashes are those of PyPI, and torch's CPU build has PyTorch's.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/environment.sh
export UV_PYTHON_DOWNLOADS=never
uv=$(command -v uv || echo "$venv/bin/uv")

# compile NAME [OPTIONS]: write requirements/NAME.lock
compile() {
  "$uv" pip compile --quiet --universal --python-version 3.10 --no-annotate --generate-hashes \
    --custom-compile-command scripts/dev/lock.sh --output-file "requirements/$1.lock" "${@:2}"
}
# without LOCK ...: an option for each package that they hold on every machine
without() { sed -n 's/^\([a-z0-9.-]*\)==[^;]* \\$/--no-emit-package=\1/p' "$@" | sort -u; }
# drop NAME LOCK ...: from a lock the packages that stand in others, too, each with its hashes
drop() {
  kept=$(awk '
    FILENAME != last { if (/^[a-z0-9]/) held[$0] = 1; next }
    /^[^ ]/ { skip = ($0 in held) }
    !skip
  ' last="requirements/$1.lock" "${@:2}" "requirements/$1.lock")
  echo "$kept" > "requirements/$1.lock"
}

# PyPI has no CPU build of torch: the version is resolved there, and the build is named at the end.
torch=$(grep -o 'torch==[0-9.]*' <(grep '^cpu = ' pyproject.toml))
overrides=$(mktemp)
build=$(mktemp)
trap 'rm "$overrides" "$build"' EXIT
echo "$torch" > "$overrides"
awk '/^[^ ]/ { wanted = index($0, torch "+cpu ") == 1 } wanted' torch="$torch" requirements/cpu.lock > "$build"
if [ ! -s "$build" ]; then
  echo "$torch+cpu" | "$uv" pip compile - --quiet --universal --python-version 3.10 --no-deps \
    --no-header --no-annotate --generate-hashes --default-index https://download.pytorch.org/whl/cpu > "$build"
fi
on_cpu=(--excludes requirements/cpu-excludes.txt --overrides "$overrides")
on_top=("${on_cpu[@]}" --constraints requirements/cpu.lock)
project=pyproject.toml

compile uv --group uv --upgrade
compile build --group build "$@"
compile trl --group trl --no-deps "$@"
compile ms_swift --group ms_swift --no-deps "$@"
compile cpu $project --extra cpu "${on_cpu[@]}" "$@"
mapfile -t held < <(without requirements/cpu.lock)
compile test $project --extra test "${on_top[@]}" "${held[@]}" "$@"
mapfile -t held < <(without requirements/{cpu,test}.lock)
compile data $project --group data "${on_top[@]}" --constraints requirements/test.lock \
  "${held[@]}" "$@"
drop data requirements/{cpu,test}.lock
drop test requirements/cpu.lock
compile gpu $project --extra gpu --constraints requirements/test.lock --constraints requirements/data.lock "$@"

awk '/^[^ ]/ { skip = index($0, torch " ") == 1 } !skip' torch="$torch" requirements/cpu.lock > "$overrides"
cat "$overrides" "$build" > requirements/cpu.lock
