#!/usr/bin/env bash
# Submit one run as an array job. The number of tasks follows from the hours of audio, or from --tasks.
#
#   submit.sh [--tasks N | --hours-per-task H] SOURCE -o OUT [options of voxbatch run] [-- options of sbatch]
#
# By default a task gets 100 hours of audio, and there are at most 64 tasks: the forecast is about 45 minutes on an L4 and 3 on
# an H100. A task with 10 hours would start for as long as it works (docs/costs.md). See array.sbatch for VOXBATCH and
# CONTAINER.
set -euo pipefail

stop() {
    printf 'submit.sh: %s\n' "$*" >&2
    exit 2
}

tasks='' hours_per_task=100 most=64
while [[ ${1:-} == --* ]]; do
    case $1 in
    --tasks) tasks=${2:-} ;;
    --hours-per-task) hours_per_task=${2:-} ;;
    *) break ;;
    esac
    shift $(($# > 1 ? 2 : 1))
done
run=()
while [[ $# -gt 0 && $1 != -- ]]; do
    run+=("$1")
    shift
done
[[ $# -eq 0 ]] || shift
[[ ${#run[@]} -gt 0 ]] || stop "say what to transcribe: submit.sh [--tasks N] SOURCE -o OUT …"
[[ " ${run[*]} " == *" -o "* || " ${run[*]} " == *" --out"* ]] || stop "say -o OUT, a place that all nodes see"
[[ $hours_per_task =~ ^[1-9][0-9]*$ ]] || stop "--hours-per-task is '$hours_per_task'; it must be a whole number from 1"

if [[ -z $tasks ]]; then
    read -ra command <<<"${VOXBATCH:-voxbatch}"
    [[ -z ${CONTAINER:-} ]] || command=(apptainer exec --bind "$PWD${BINDS:+,$BINDS}" "$CONTAINER" "${command[@]}")
    plan=$("${command[@]}" run "${run[@]}" --tasks none --dry-run) || exit
    # The dry run prints "audio    12.3 hours (…)", or for less than an hour "audio    12:34".
    tasks=$(awk -v each="$hours_per_task" -v most="$most" '
        $1 == "audio" { hours = $3 ~ /^hours/ ? $2 : 0; gsub(/,/, "", hours); n = int(hours / each); n += n * each < hours }
        END { print (n < 1 ? 1 : (n > most ? most : n)) }' <<<"$plan")
fi
[[ $tasks =~ ^[1-9][0-9]{0,4}$ ]] || stop "--tasks is '$tasks'; it must be a whole number from 1 to 99999"

exec sbatch --array="0-$((tasks - 1))" "$@" "$(dirname "${BASH_SOURCE[0]}")/array.sbatch" "${run[@]}"
