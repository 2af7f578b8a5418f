#!/usr/bin/env bash
# Inside a Slurm job: runs a command as the job's tasks, and puts the job back into the queue when it has to make room.
#
# Slurm's warning (SIGUSR1 to this script, see --signal in the .sbatch files) goes on to the tasks. A command that then
# saves its state and ends with status 75 makes the job go back into the queue; so does one that Slurm's own SIGTERM
# made do the same. A job that a user cancels stays cancelled.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage (in a Slurm job): scripts/slurm/run.sh COMMAND [ARGUMENTS]

Runs "srun COMMAND", hands SIGUSR1 on to it, and requeues the job if it ends with status 75.
SRUN_OPTIONS adds options to srun, separated by blanks.
USAGE
}

say() {
    echo "run.sh: job ${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}: $1" >&2
}

# Again and again, because tasks that are only starting do not listen yet.
warn_tasks() {
    while kill -USR1 "$1" 2>/dev/null; do
        sleep 5
    done
}

requeue() {
    local state
    state="$(squeue --noheader --jobs "$SLURM_JOB_ID" --format %T || true)"
    if [[ "$state" != "RUNNING" ]]; then
        say "stopped, and not put back into the queue, because the job is ${state:-gone}"
        exit 75
    fi
    say "stopped with a checkpoint; back into the queue (restart $((${SLURM_RESTART_COUNT:-0} + 1)))"
    scontrol requeue "$SLURM_JOB_ID"
}

main() {
    local child status interrupted=yes warned=
    if [[ $# -eq 0 || "$1" == "--help" ]]; then
        usage
        [[ $# -gt 0 ]]
        return
    fi
    if [[ -z "${SLURM_JOB_ID:-}" ]]; then
        echo "run.sh: this is no Slurm job; submit one of scripts/slurm/*.sbatch with sbatch" >&2
        return 1
    fi
    local options=()
    read -ra options <<<"${SRUN_OPTIONS:-}"
    trap 'interrupted=yes; warned=yes' USR1
    trap 'interrupted=yes' TERM  # the tasks get theirs from Slurm
    # When a task ends, well or not, the others have a minute: time to save, and an end to waiting for the dead.
    srun --kill-on-bad-exit=0 --wait=60 ${options[@]+"${options[@]}"} "$@" &
    child=$!
    while [[ -n "$interrupted" ]]; do
        interrupted=
        if [[ "$warned" == yes ]]; then
            warned=handled
            say "Slurm asks for room; telling the tasks"
            warn_tasks "$child" &
        fi
        status=0
        wait "$child" || status=$?
    done
    if [[ $status -eq 75 ]]; then
        requeue
        return
    fi
    return "$status"
}

main "$@"
