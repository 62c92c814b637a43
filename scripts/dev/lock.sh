#!/usr/bin/env bash
# Write requirements/*.lock anew from pyproject.toml, for Python 3.10 to 3.12:
#
#   scripts/dev/lock.sh              what is locked stays where it still fits
#   scripts/dev/lock.sh --upgrade    the newest of everything
#
# cpu.lock and gpu.lock are complete; test.lock and data.lock are what the tests and two of the data
# sets need on top of either.
set -euo pipefail
cd "$(dirname "$0")/../.."
. scripts/environment.sh
uv=$(command -v uv || echo "$venv/bin/uv")

# compile NAME [OPTIONS]: write requirements/NAME.lock
compile() {
  "$uv" pip compile pyproject.toml --quiet --universal --python-version 3.10 --no-annotate \
    --custom-compile-command scripts/dev/lock.sh --output-file "requirements/$1.lock" "${@:2}"
}
# without LOCK ...: an option for each package that they hold on every machine
without() { sed -n 's/^\([a-z0-9.-]*\)==[^;]*$/--no-emit-package=\1/p' "$@" | sort -u; }
# drop NAME LOCK ...: from a lock the lines that stand in others, too
drop() {
  kept=$(grep -vxFf <(sed '/^#/d' "${@:2}") "requirements/$1.lock")
  echo "$kept" > "requirements/$1.lock"
}

# PyPI has no CPU build of torch: the version is resolved there, and the build is named at the end.
torch=$(grep -o 'torch==[0-9.]*' <(grep '^cpu = ' pyproject.toml))
overrides=$(mktemp)
trap 'rm "$overrides"' EXIT
echo "$torch" > "$overrides"
on_cpu=(--excludes requirements/cpu-excludes.txt --overrides "$overrides")
on_top=("${on_cpu[@]}" --constraints requirements/cpu.lock)
sed -i "s/^$torch+cpu$/$torch/" requirements/cpu.lock

compile cpu --extra cpu "${on_cpu[@]}" "$@"
mapfile -t held < <(without requirements/cpu.lock)
compile test --extra test "${on_top[@]}" "${held[@]}" "$@"
mapfile -t held < <(without requirements/{cpu,test}.lock)
compile data --group data "${on_top[@]}" --constraints requirements/test.lock \
  "${held[@]}" "$@"
drop data requirements/{cpu,test}.lock
drop test requirements/cpu.lock
compile gpu --extra gpu --constraints requirements/test.lock --constraints requirements/data.lock "$@"

sed -i "s/^$torch$/$torch+cpu/" requirements/cpu.lock
