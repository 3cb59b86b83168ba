#!/usr/bin/env bash
# Remove what deploy.sh of this folder created, in reverse order. The script looks before it acts: a second run changes
# nothing.
set -euo pipefail

usage() {
    cat <<'END'
usage: [NAME=VALUE …] jobs/cloudrun/service/teardown.sh [--with-data] [--dry-run]

Removes the service voxbatch-serve, its alerts and its service account. The token, the notification channel, the
repository with its images, the account of builds and an empty bucket of weights are removed too, unless the jobs of
../deploy.sh use them. The APIs stay.

  PROJECT, REGION, BUCKET_MODELS   as they were given to deploy.sh

  --with-data    also a bucket of weights that is not empty
  --dry-run      look, and say what would be removed
  --help         this
END
}

# shellcheck source-path=SCRIPTDIR source=../settings.sh
source "$(dirname "${BASH_SOURCE[0]}")/../settings.sh"
# shellcheck source-path=SCRIPTDIR source=../removal.sh
source "$HERE/removal.sh"
arguments "$@"
settings

main() {
    local each
    say "$SERVICE is removed from project $PROJECT, region $REGION"
    for each in $SERVICE_POLICIES; do policy "$each"; done
    gone "service $SERVICE" "run services" "$SERVICE" --region="$REGION"
    if ask gcloud secrets describe "$TOKEN"; then revoke "$SERVE" roles/secretmanager.secretAccessor secrets "$TOKEN"; fi
    revoke "$SERVE" roles/storage.objectViewer "storage buckets" "gs://$BUCKET_MODELS"
    gone "service account voxbatch-serve" "iam service-accounts" "$SERVE_SA"
    shared "$RUN_SA" "the jobs of ../deploy.sh"
    removed
}

main
