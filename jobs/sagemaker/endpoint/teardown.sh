#!/usr/bin/env bash
# Remove what deploy.sh of this folder created: the stack, with the endpoint, its role, its autoscaling and its alarms,
# and serving.properties. The weights, requests, answers and images stay: ../teardown.sh removes the images, and with
# --with-data the rest. --dry-run only shows it. A second run finds nothing more to remove.
set -euo pipefail
# shellcheck source=../common.sh
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
option "--dry-run (show what would be removed)" "$@"
recall "$NAME-endpoint"
recall "$NAME" "${SHARED[@]}"
check_settings
# shellcheck source=settings.sh
. "$here/endpoint/settings.sh"

remove_stack "$NAME-endpoint"
if found '404|NoSuchKey|NoSuchBucket|NotFound' s3api head-object --bucket "$MODEL_BUCKET" --key "${MODEL_PREFIX}serving.properties"; then
    remove serving.properties s3api delete-object --bucket "$MODEL_BUCKET" --key "${MODEL_PREFIX}serving.properties"
else
    say absent serving.properties
fi
