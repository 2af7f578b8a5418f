#!/usr/bin/env bash
# Inside a Slurm job: runs a training as the job's tasks, and puts the job back into the queue when it has to go on.
#
# Slurm's warning (SIGUSR1 to this script, see --signal in the .sbatch files) goes on to the tasks. A command that then
# saves its state and ends with status 75 makes the job go back into the queue; so does one that Slurm's own SIGTERM
# made do the same. A training that fails, a process that hangs included, is tried again if it has saved a checkpoint
# since the job started. A job that a user cancels stays cancelled.
set -euo pipefail

usage() {
    cat <<'USAGE'
usage (in a Slurm job): scripts/slurm/run.sh COMMAND [ARGUMENTS]

Runs "srun COMMAND", hands SIGUSR1 on to it, and requeues the job if it ends with status 75, or if it fails after it has
written a checkpoint to the folder that follows --save-dir among the arguments. These variables change that:

  SRUN_OPTIONS            options for srun, separated by blanks
  POWERNORM_REQUEUES      how often a job goes back into the queue at most (default: 100)
  POWERNORM_RETRIES       how many failures of a training are tried again at most (default: 5)
  POWERNORM_IDLE_RETRIES  how many in a row without a new checkpoint (default: 0)
  POWERNORM_HOOK          a shell file that is read first: it may load modules and set SRUN_OPTIONS, PYTHON or
                          POWERNORM_DATA (the folder of the data on each machine); if it defines a function
                          on_each_machine, that is called once on every machine of the job before the training
USAGE
}

say() {
    echo "run.sh: job $SLURM_JOB_ID: $1" >&2 || true  # a full disk is no reason to end here
}

# Again and again, because tasks that are only starting do not listen yet.
warn_tasks() {
    while kill -USR1 "$1" 2>/dev/null; do
        sleep 5
    done
}

# Prints what follows --save-dir among the arguments.
save_dir() {
    while [[ $# -gt 1 && "$1" != "--" ]]; do
        if [[ "$1" == "--save-dir" ]]; then
            echo "$2"
            return
        fi
        shift
    done
}

# Prints what tells a checkpoint from the next one: each is a new file.
checkpoint() {
    stat --format=%i-%Y "$1/checkpoint_last.pt" 2>/dev/null || true
}

# Puts the job back into the queue, or ends with status $1.
requeue() {
    local state restarts="${SLURM_RESTART_COUNT:-0}" limit="${POWERNORM_REQUEUES:-100}"
    if [[ "$restarts" -ge "$limit" ]]; then
        say "not put back into the queue: it was there $limit times (POWERNORM_REQUEUES)"
        exit "$1"
    fi
    state="$(squeue --noheader --jobs "$SLURM_JOB_ID" --format %T || true)"
    if [[ "$state" != "RUNNING" ]]; then
        say "stopped, and not put back into the queue, because the job is ${state:-gone}"
        exit "$1"
    fi
    say "$2; back into the queue (restart $((restarts + 1)))"
    scontrol requeue "$SLURM_JOB_ID"
}

# After a failure with status $1: tries again or not. $2 is the folder, $3 the checkpoint at the job's start.
after_failure() {
    local file="$2/failures" now retries="${POWERNORM_RETRIES:-5}" idle="${POWERNORM_IDLE_RETRIES:-0}" in_a_row=0 line
    if [[ ! -d "$2" ]]; then
        say "failed with status $1"
        return "$1"
    fi
    now="$(checkpoint "$2")"
    { echo "${now:-none} $(date +%FT%T) status $1, restart ${SLURM_RESTART_COUNT:-0}" >>"$file"; } 2>/dev/null || true
    if [[ "$(grep -c . "$file")" -gt "$retries" ]]; then
        say "failed with status $1 and is not tried again: that was done $retries times (POWERNORM_RETRIES)"
        return "$1"
    fi
    if [[ "${now:-none}" == "${3:-none}" ]]; then
        while read -r line _; do
            if [[ "$line" == "${now:-none}" ]]; then in_a_row=$((in_a_row + 1)); else in_a_row=0; fi
        done <"$file"
        if [[ "$in_a_row" -gt "$idle" ]]; then
            say "failed with status $1 without a new checkpoint; not tried again"
            return "$1"
        fi
    fi
    requeue "$1" "failed with status $1, and is tried again"
}

main() {
    local child status interrupted=yes warned="" folder start
    if [[ $# -eq 0 || "$1" == "--help" ]]; then
        usage
        [[ $# -gt 0 ]]
        return
    fi
    if [[ -z "${SLURM_JOB_ID:-}" ]]; then
        echo "run.sh: this is no Slurm job; submit one of scripts/slurm/*.sbatch with sbatch" >&2
        return 1
    fi
    if [[ -n "${POWERNORM_HOOK:-}" ]]; then
        # shellcheck source=/dev/null
        source "$POWERNORM_HOOK"
        if declare -F on_each_machine >/dev/null; then
            # shellcheck disable=SC2016
            srun --ntasks="${SLURM_JOB_NUM_NODES:-1}" --ntasks-per-node=1 bash -c 'source "$POWERNORM_HOOK" && on_each_machine'
        fi
    fi
    local options=()
    read -ra options <<<"${SRUN_OPTIONS:-}"
    # Told to srun as well: since Slurm 22.05 it does not take it from the job, and all processes share one core.
    if [[ -n "${SLURM_CPUS_PER_TASK:-}" ]]; then options+=("--cpus-per-task=$SLURM_CPUS_PER_TASK"); fi
    folder="$(save_dir "$@")"
    start="$(checkpoint "$folder")"
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
    case "$status" in
        0) ;;
        75) requeue 75 "stopped with a checkpoint" ;;
        *) after_failure "$status" "$folder" "$start" ;;
    esac
}

main "$@"
