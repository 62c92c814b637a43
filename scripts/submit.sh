#!/usr/bin/env bash
# Train one recipe on a Ray cluster:
#   scripts/submit.sh tool_call/gdpo --run RUN [OPTIONS] [HYDRA OVERRIDES] [-- OPTIONS OF ray job submit]
#
# RAY_API_SERVER_ADDRESS says where (http://HEAD:8265); a token in ~/.ray/auth_token is sent. RUN
# is a directory that every node can write; with the same one, a job goes on from the last whole
# checkpoint, with --retries N by itself. The variable RUN before the command says the same. Ray shows the job's log until the job ends; Ctrl-C
# ends the watching. `ray job logs --follow ID` shows it again, `ray job stop ID` ends the job.
# --dry-run submits nothing and says what would run, and what it needs. Relative paths are those from
# here. The job is
#   python3 -m cluster_nodes VERSION FILES && gdpo-verl train RECIPE --run RUN [HYDRA OVERRIDES]
# the first of which refuses a cluster with a node that has another gdpo-verl or verl, or none, or
# lacks a file.
set -euo pipefail
recipe=${1:?usage: scripts/submit.sh RECIPE --run /shared/runs/NAME [OPTIONS] [HYDRA OVERRIDES], for example tool_call/gdpo}
shift
. "$(dirname "$0")/environment.sh"
need_environment
exec "$gdpo" submit "$recipe" ${RUN:+--run "$RUN"} "$@"
