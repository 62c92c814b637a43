#!/usr/bin/env bash
# The study of docs/evidence.md, without a GPU: what is left of it, seed by seed.
#
#   scripts/study.sh                   everything that is left: 154 runs of some minutes on two cores
#   scripts/study.sh --question 1      one question alone
#   scripts/study.sh --minutes 60      starts no new run after an hour
#   scripts/study.sh --status          what is done and left; trains nothing
#
# 2 cores, 8 GB of memory free. Needs scripts/setup.sh cpu data. Stop it at any time: each run that has come to its end
# is in docs/evidence/ with its metrics, and one that was cut off is repeated from the beginning. Started a second time
# beside the first, it takes other runs; whether that is faster depends on the machine. Then
# scripts/study_page.py makes the tables and pictures of docs/evidence.md.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/environment.sh
need_environment
export VERL_PLATFORM=cpu           # verl on the cores of this machine
export PYTHONPATH=$PWD/scripts${PYTHONPATH:+:$PYTHONPATH}    # an arm's estimator is in study_rewards.py
exec "$venv/bin/python" scripts/study.py "$@"
