#!/usr/bin/env bash
# Remove what deploy.sh made: terraform destroy. A second run changes nothing.
set -euo pipefail

usage() {
    cat <<'END'
usage: [NAME=VALUE …] jobs/cloudrun/teardown.sh [--with-data] [--dry-run]

Removes alerts, schedules, workflow, worker, jobs, topics and subscriptions with the messages in them, and the service
accounts of voxbatch. The notification channel, the token, the repository with its images and the weights are removed
too, unless the service of service/deploy.sh uses them. Buckets that have something in them stay, and so do the APIs.

  PROJECT, REGION, BUCKET_IN, BUCKET_OUT, BUCKET_MODELS, BUCKET_KERNELS, BUCKET_STATE   as they were given to deploy.sh

  --with-data    also the buckets that are not empty: recordings, manifests, transcripts and weights are lost
  --dry-run      show what would be removed
  --help         this
END
}

# shellcheck source-path=SCRIPTDIR source=settings.sh
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
# shellcheck source-path=SCRIPTDIR source=terraform.sh
source "$HERE/terraform.sh"
arguments "$@"
settings

main() {
    say "voxbatch is removed from project $PROJECT, region $REGION"
    if ! state_exists; then
        say "Nothing to remove: there is no bucket $BUCKET_STATE."
        return
    fi
    export TF_VAR_image=none TF_VAR_alerts=false TF_VAR_bucket_in="$BUCKET_IN" TF_VAR_bucket_out="$BUCKET_OUT"
    export TF_VAR_bucket_kernels="$BUCKET_KERNELS"
    if has_state jobs; then
        keep_or_empty jobs 'google_storage_bucket.bucket["in"]' "$BUCKET_IN"
        keep_or_empty jobs 'google_storage_bucket.bucket["out"]' "$BUCKET_OUT"
        keep_or_empty jobs 'google_storage_bucket.bucket["kernels"]' "$BUCKET_KERNELS"
        destroy jobs
    fi
    destroy_shared service "the service of service/deploy.sh"
    say "The APIs stay enabled, and Google's own accounts keep their roles in other things: others may need both."
}

main
