#!/usr/bin/env bash
# Remove what deploy.sh of this folder made: terraform destroy. A second run changes nothing.
set -euo pipefail

usage() {
    cat <<'END'
usage: [NAME=VALUE …] jobs/cloudrun/service/teardown.sh [--with-data] [--dry-run]

Removes the service voxbatch-serve, its alerts and its service account. The token, the notification channel, the
repository with its images, the account of builds and an empty bucket of weights are removed too, unless the jobs of
../deploy.sh use them. The APIs stay.

  PROJECT, REGION, BUCKET_MODELS, BUCKET_STATE   as they were given to deploy.sh

  --with-data    also a bucket of weights that is not empty
  --dry-run      show what would be removed
  --help         this
END
}

# shellcheck source-path=SCRIPTDIR source=../settings.sh
source "$(dirname "${BASH_SOURCE[0]}")/../settings.sh"
# shellcheck source-path=SCRIPTDIR source=../terraform.sh
source "$HERE/terraform.sh"
arguments "$@"
settings

main() {
    say "voxbatch-serve is removed from project $PROJECT, region $REGION"
    if ! state_exists; then
        say "Nothing to remove: there is no bucket $BUCKET_STATE."
        return
    fi
    export TF_VAR_image=none TF_VAR_alerts=false TF_VAR_invokers='[]'
    if has_state service; then destroy service; fi
    destroy_shared jobs "the jobs of ../deploy.sh"
}

main
