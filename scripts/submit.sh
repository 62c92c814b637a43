#!/usr/bin/env bash
# Train one recipe on a Ray cluster:
#   scripts/submit.sh tool_call/gdpo --run RUN [OPTIONS] [HYDRA OVERRIDES] [-- OPTIONS OF ray job submit]
#
# RAY_API_SERVER_ADDRESS is the address of the cluster (http://HEAD:8265). A token in
# ~/.ray/auth_token is sent. RUN is a directory that every node can write; the variable RUN before the
# command does the same as --run. With the same RUN a job resumes from the last complete checkpoint,
# with --retries N automatically. Ray shows the log of the job until the job ends; Ctrl-C stops
# showing it. `ray job logs --follow ID` shows the log again, `ray job stop ID` ends the job.
# --dry-run submits nothing, and says what would run and what it needs. Relative paths start at the
# working directory. The job is
#   python3 -m cluster_nodes VERSION FILES && gdpo-verl train RECIPE --run RUN [HYDRA OVERRIDES]
# Its first command rejects a cluster in which a node has another gdpo-verl or verl, or has none, or
# lacks a file.
set -euo pipefail
recipe=${1:?usage: scripts/submit.sh RECIPE --run /shared/runs/NAME [OPTIONS] [HYDRA OVERRIDES], for example tool_call/gdpo}
shift
. "$(dirname "$0")/environment.sh"
need_environment
exec "$gdpo" submit "$recipe" ${RUN:+--run "$RUN"} "$@"
