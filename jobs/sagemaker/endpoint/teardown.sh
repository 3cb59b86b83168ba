#!/usr/bin/env bash
# Remove what deploy.sh of this folder created: the stack, with the endpoint, its role, its autoscaling and its alarms,
# and serving.properties. The weights, requests, answers and images stay, and the script says so. With --all, an empty
# bucket is removed, and so is the repository with its images, unless the pipeline of ../deploy.sh uses it. A second run
# finds nothing more to remove.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=../removal.sh
. "$here/removal.sh"
[[ $# == 0 || "$*" == --all ]] || stop "teardown.sh takes nothing, or --all; it was given: $*"

stack() {
    if ! found ValidationError cloudformation describe-stacks --stack-name "$STACK"; then
        say absent "stack $STACK"
        return
    fi
    call cloudformation delete-stack --stack-name "$STACK"
    call cloudformation wait stack-delete-complete --stack-name "$STACK"
    say gone "stack $STACK"
}

properties() {
    if found '404|NoSuchKey|NoSuchBucket|NotFound' s3api head-object --bucket "$MODEL_BUCKET" --key "${MODEL_PREFIX}serving.properties"; then
        call s3api delete-object --bucket "$MODEL_BUCKET" --key "${MODEL_PREFIX}serving.properties" >/dev/null
        say gone serving.properties
    else
        say absent serving.properties
    fi
}

stack
properties
if has_pipeline; then say kept "repository $NAME: the pipeline uses it"; else repository "${1:-}"; fi
bucket "$MODEL_BUCKET" "${1:-}"
