#!/usr/bin/env bash
# Remove what deploy.sh created, in reverse order. The script looks before it acts: a second run changes nothing.
set -euo pipefail

usage() {
    cat <<'END'
usage: [NAME=VALUE …] jobs/cloudrun/teardown.sh [--with-data] [--dry-run]

Removes alerts, schedules, workflow, worker, jobs, topics and subscriptions with the messages in them, and the service
accounts of voxbatch. The notification channel, the token, the repository with its images and the weights are removed
too, unless the service of service/deploy.sh uses them. Buckets that have something in them stay, and so do the APIs.

  PROJECT, REGION, BUCKET_IN, BUCKET_OUT, BUCKET_MODELS   as they were given to deploy.sh

  --with-data    also the buckets that are not empty: recordings, manifests, transcripts and weights are lost
  --dry-run      look, and say what would be removed
  --help         this
END
}

# shellcheck source-path=SCRIPTDIR source=settings.sh
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
# shellcheck source-path=SCRIPTDIR source=removal.sh
source "$HERE/removal.sh"
arguments "$@"
settings

notifications() {
    local id topic
    ask gcloud storage buckets notifications list "gs://$BUCKET_IN" \
        --format='value("Notification Configuration".id,"Notification Configuration".topic)' || return 0
    while IFS=$'\t' read -r id topic; do
        [[ "$topic" == *"/$TOPIC" ]] || continue
        change "delete the notification of $BUCKET_IN" gcloud storage buckets notifications delete \
            "projects/_/buckets/$BUCKET_IN/notificationConfigs/$id"
    done <<<"$ANSWER"
}

main() {
    local each
    say "voxbatch is removed from project $PROJECT, region $REGION"
    for each in $POLICIES; do policy "$each"; done
    for each in $METRICS; do gone "log metric voxbatch_${each//-/_}" "logging metrics" "voxbatch_${each//-/_}"; done
    for each in voxbatch-nightly voxbatch-sweep; do
        gone "schedule $each" "scheduler jobs" "$each" --location="$REGION"
    done
    gone "trigger voxbatch" "eventarc triggers" voxbatch --location="$REGION"
    gone "workflow voxbatch" workflows voxbatch --location="$REGION"
    notifications
    gone "worker pool voxbatch-listen" "beta run worker-pools" voxbatch-listen --region="$REGION"
    for each in voxbatch-nightly voxbatch-dispatch voxbatch; do
        gone "job $each" "run jobs" "$each" --region="$REGION"
    done
    for each in voxbatch-uploads voxbatch-nightly voxbatch-dead; do
        gone "subscription $each" "pubsub subscriptions" "$each"
    done
    gone "topic voxbatch-uploads" "pubsub topics" "$TOPIC"
    gone "topic voxbatch-dead" "pubsub topics" "$DEAD_TOPIC"
    for each in "$RUN" "$DISPATCH" "$LISTEN"; do roles_on_recordings revoke "$each"; done
    for each in "$RUN" "$LISTEN"; do revoke "$each" roles/storage.objectViewer "storage buckets" "gs://$BUCKET_MODELS"; done
    if ask gcloud secrets describe "$TOKEN"; then
        for each in "$RUN" "$LISTEN"; do revoke "$each" roles/secretmanager.secretAccessor secrets "$TOKEN"; done
    fi
    for each in $START_PROJECT_ROLES; do revoke "$START" "$each" projects "$PROJECT"; done
    for each in run dispatch start listen; do
        gone "service account voxbatch-$each" "iam service-accounts" "voxbatch-$each@$PROJECT.iam.gserviceaccount.com"
    done
    for each in "$BUCKET_IN" "$BUCKET_OUT"; do bucket "$each"; done
    shared "$SERVE_SA" "the service of service/deploy.sh"

    removed
    say "The APIs stay enabled, and Cloud Storage's own account may still publish in the project: others may need both."
}

main
