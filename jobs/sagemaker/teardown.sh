#!/usr/bin/env bash
# Remove what deploy.sh created, but not your data: buckets and images stay, and the script says so. With --all, the
# images are removed too, and so are empty buckets. A second run finds nothing more to remove.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=removal.sh
. "$here/removal.sh"
[[ $# == 0 || "$*" == --all ]] || stop "teardown.sh takes nothing, or --all; it was given: $*"

pipeline() {
    if has_pipeline; then
        call sagemaker delete-pipeline --pipeline-name "$NAME" >/dev/null
        say gone "pipeline $NAME (what it has started runs on)"
    else
        say absent "pipeline $NAME"
    fi
}

queue() {
    if found 'AWS.SimpleQueueService.NonExistentQueue|QueueDoesNotExist' \
        sqs get-queue-url --queue-name "$DEAD_QUEUE" --query QueueUrl --output text; then
        call sqs delete-queue --queue-url "$answer"
        say gone "queue $DEAD_QUEUE"
    else
        say absent "queue $DEAD_QUEUE"
    fi
}

role() {
    if ! found NoSuchEntity iam get-role --role-name "$1"; then
        say absent "role $1"
        return
    fi
    if found NoSuchEntity iam get-role-policy --role-name "$1" --policy-name "$NAME"; then
        call iam delete-role-policy --role-name "$1" --policy-name "$NAME"
    fi
    call iam delete-role --role-name "$1"
    say gone "role $1"
}

remove_rule "$UPLOADS_RULE"
remove_rule "$NIGHTLY_RULE"
remove_alerts
pipeline
queue
role "$START_ROLE"
role "$CREATE_ROLE"
role "$RUN_ROLE"
if [[ ${1:-} == --all ]] && found ValidationError cloudformation describe-stacks --stack-name "$NAME-endpoint"; then
    say kept "repository $NAME: the endpoint uses it"
else
    repository "${1:-}"
fi
bucket "$IN_BUCKET" "${1:-}"
bucket "$OUT_BUCKET" "${1:-}"
