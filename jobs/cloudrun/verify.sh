# shellcheck shell=bash disable=SC2154
# Try the deployed jobs on a real GPU, and compile the kernels there. deploy.sh sources this file after settings.sh.
# (SC2154: the settings and the helper functions are those of settings.sh and deploy.sh.)

EXECUTION_S=2400 # the longest time to wait for one execution: an L4 starts in 3 to 6 minutes

# verify_deployment: run `doctor` in the job voxbatch, then transcribe one recording with it. Print the transcript and
# what both cost. Stop with the end of the log if one of them fails.
verify_deployment() {
    local recording="$HERE/../../examples/recordings/weather.flac" source out seconds total run_s start_s
    source="gs://$BUCKET_IN/verify/weather.flac"
    out="$OUT/verify/$(date -u +%Y%m%dT%H%M%SZ)" # a new folder: in an old one, there would be nothing left to transcribe

    change "run doctor on an L4: its GPU, its driver, its model, its outputs" execute voxbatch doctor
    [[ "$DRY_RUN" == no ]] || return 0
    wait_for_execution "$(<"$WORK/execution")"
    total="$seconds"
    execution_log "$(<"$WORK/execution")" 60

    change "upload $(basename "$recording")" gcloud storage cp "$recording" "$source"
    change "transcribe it on an L4" execute voxbatch "run,$source,-o,$out,--formats,txt"
    wait_for_execution "$(<"$WORK/execution")"
    ask gcloud storage cat "$out/txt/weather.txt" ||
        die "the execution has succeeded, and $out has no transcript: voxbatch status $out"
    say "  transcript:"
    printf '%s\n' "$ANSWER" | sed 's/^/    /'
    ask gcloud storage cat "$out/summary.json" || die "$out has no summary.json: voxbatch status $out"
    run_s="$(sed -n 's/^  "wall_s": \([0-9.]*\),*$/\1/p' <<<"$ANSWER")"
    start_s="$(awk -v all="$seconds" -v run="${run_s:-0}" 'BEGIN { print int((all > run) ? all - run + 0.5 : 0) }')"
    say "  cost: $(usd "$seconds") USD for $seconds s of the job: $(usd "${run_s:-0}") USD for the run (${run_s:-?} s)," \
        "the rest for its start ($start_s s). With doctor: $(usd "$((total + seconds))") USD, at $USD_PER_HOUR USD an hour"
    say "verified: a run on the GPU works; its outputs are in $out"
    compile_kernels "$recording"
}

# 2.7 hours of audio: a run whose chunks are all decoded before the model is loaded (64 of them) compiles nothing.
KERNEL_LINES=1000

# compile_kernels RECORDING: let the job voxbatch-kernels fill BUCKET_KERNELS. Kernels are code, so only this job may write
# them, and it runs only a recording of ours; the tasks that decode uploads read them.
compile_kernels() {
    local place="gs://$BUCKET_KERNELS/source" out line
    out="gs://$BUCKET_KERNELS/runs/$(date -u +%Y%m%dT%H%M%SZ)"
    for ((line = 0; line < KERNEL_LINES; line++)); do
        printf '{"id": "%d", "audio_filepath": "%s", "duration": 9.857}\n' "$line" "$(basename "$1")"
    done >"$WORK/kernels.jsonl"
    change "upload a list that names $(basename "$1") $KERNEL_LINES times" gcloud storage cp "$1" "$WORK/kernels.jsonl" "$place/"
    change "compile the kernels on an L4, for the next starts" execute voxbatch-kernels "run,$place/kernels.jsonl,-o,$out"
    wait_for_execution "$(<"$WORK/execution")"
    say "  kernels: gs://$BUCKET_KERNELS/compiled; $(usd "$seconds") USD"
}

# usd SECONDS: print what a task costs for so long.
usd() { awk -v s="$1" -v price="$USD_PER_HOUR" 'BEGIN { printf "%.3f", s * price / 3600 }'; }

# execute JOB ARGUMENTS: start one task of a job, and put the name of the execution into $WORK/execution. A run has its
# OUT as an argument, and doctor writes to the OUT that it finds in the variable.
execute() {
    gcloud run jobs execute "$1" --region="$REGION" --args="$2" --update-env-vars="VOXBATCH_OUT=$out" --tasks=1 \
        --async --format='value(metadata.name)' >"$WORK/execution"
}

# wait_for_execution NAME: wait for its end, and put its seconds into $seconds. Cloud Run would try a failed task as many
# times as MAX_RETRIES says, each with a start of minutes; this stops at the first failure.
wait_for_execution() {
    local limit=$((SECONDS + EXECUTION_S)) kind state retried begun ended message completed why
    while true; do
        watch gcloud run jobs executions describe "$1" --region="$REGION" --flatten='status.conditions[]' \
            --format='value[separator="|"](status.conditions.type,status.conditions.status,status.retriedCount,
            status.startTime,status.completionTime,status.conditions.message)'
        # A row for each condition, with the execution's own fields in each. Only the last field may contain the "|".
        IFS='|' read -r _ _ retried begun ended _ <<<"${ANSWER%%$'\n'*}"
        completed=Unknown why=""
        while IFS='|' read -r kind state _ _ _ message; do
            [[ "$kind" != Completed ]] || completed="$state" why="$message"
        done <<<"$ANSWER"
        case "$completed" in
            True) break ;;
            False) execution_failed "$1" "$why" ;;
        esac
        if [[ "${retried:-0}" != 0 ]]; then
            gcloud run jobs executions cancel "$1" --region="$REGION" --quiet >/dev/null 2>&1 || true
            execution_failed "$1" "its first attempt failed, and the others were cancelled"
        elif ((SECONDS > limit)); then
            gcloud run jobs executions cancel "$1" --region="$REGION" --quiet >/dev/null 2>&1 || true
            execution_failed "$1" "it has not ended after $((EXECUTION_S / 60)) minutes${why:+ ($why)}, and was cancelled:
    there may be no free L4 in $REGION, or no quota:
    https://console.cloud.google.com/iam-admin/quotas?project=$PROJECT"
        fi
        sleep "$RETRY_S"
    done
    seconds="$(awk -v from="$begun" -v to="$ended" '
        function s(time, part) { split(substr(time, 12, 8), part, ":"); return part[1] * 3600 + part[2] * 60 + part[3] }
        BEGIN { print (s(to) - s(from) + 86400) % 86400 }')" # times in UTC, less than a day apart
}

# execution_log NAME LINES: print the last lines that its tasks wrote.
execution_log() {
    local attempt
    for attempt in 1 2 3; do # logs arrive some seconds after the end
        ask gcloud logging read "resource.type=\"cloud_run_job\" AND labels.\"run.googleapis.com/execution_name\"=\"$1\"" \
            --limit="$2" --order=desc --format='value[separator=" "](textPayload,jsonPayload.message,jsonPayload.text)' || true
        [[ -z "$ANSWER" && "$attempt" -lt 3 ]] || break
        sleep "$RETRY_S"
    done
    printf '%s\n' "$ANSWER" | sed 's/^ \([^ ]\)/\1/; s/ *$//' | awk '{ line[NR] = $0 } END { while (NR) print "    " line[NR--] }'
}

# execution_failed NAME REASON: print the end of its log, and stop.
execution_failed() {
    execution_log "$1" 60 >&2
    die "execution $1 failed: $2
    The end of its log is above. All of it:
    gcloud logging read 'labels.\"run.googleapis.com/execution_name\"=\"$1\"' --project=$PROJECT \\
        --order=asc --format='value(textPayload,jsonPayload.message,jsonPayload.text)'
    All is deployed; this was the trial. Set it right, and run deploy.sh again with VERIFY=yes."
}
