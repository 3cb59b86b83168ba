#!/usr/bin/env bash
# Remove what deploy.sh created, in reverse order. The script looks before it acts: a second run changes nothing.
set -euo pipefail

usage() {
    cat <<'END'
usage: [NAME=VALUE …] jobs/cloudrun/teardown.sh [--with-data] [--dry-run]

Removes alerts and their channel, schedules, workflow, worker, jobs, topics and subscriptions with the messages in them,
the token, repository and images, and the service accounts of voxbatch. Buckets that have something in them stay, and so
do the APIs.

  PROJECT, REGION, BUCKET_IN, BUCKET_OUT, BUCKET_MODELS   as they were given to deploy.sh

  --with-data    also the buckets that are not empty: recordings, manifests, transcripts and weights are lost
  --dry-run      look, and say what would be removed
  --help         this
END
}

# shellcheck source-path=SCRIPTDIR source=settings.sh
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"

WITH_DATA=no
for argument in "$@"; do
    case "$argument" in
        --help | -h)
            usage
            exit 0
            ;;
        --with-data) WITH_DATA=yes ;;
        --dry-run) DRY_RUN=yes ;;
        *) die "unknown argument $argument; see --help" ;;
    esac
done
settings

# gone WHAT "COMMAND GROUP" NAME FLAG…: delete the object if it exists. `delete` takes the same flags as `describe`.
gone() {
    local what="$1" name="$3" group
    read -ra group <<<"$2"
    shift 3
    if ask gcloud "${group[@]}" describe "$name" "$@"; then
        change "delete $what" gcloud "${group[@]}" delete "$name" "$@"
    else
        same "no $what"
    fi
}

policy() {
    local name
    ask gcloud alpha monitoring policies list --filter="displayName=\"voxbatch: ${1//-/ }\"" --format='value(name)' || true
    for name in $ANSWER; do
        change "delete alert policy ${1//-/ }" gcloud alpha monitoring policies delete "$name"
    done
}

channels() {
    local name
    ask gcloud beta monitoring channels list --filter='displayName="voxbatch"' --format='value(name)' || true
    for name in $ANSWER; do
        change "delete notification channel ${name##*/}" gcloud beta monitoring channels delete "$name"
    done
}

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

bucket() {
    if ! ask gcloud storage buckets describe "gs://$1" --format='value(name)'; then
        same "no bucket $1"
    elif ask gcloud storage ls "gs://$1" && [[ -n "$ANSWER" && "$WITH_DATA" == no ]]; then
        same "bucket $1 stays: there is something in it; --with-data deletes it, too"
    elif [[ -n "$ANSWER" ]]; then
        change "delete bucket $1 and what is in it" gcloud storage rm --recursive "gs://$1"
    else
        change "delete bucket $1" gcloud storage buckets delete "gs://$1"
    fi
}

main() {
    local each
    say "voxbatch is removed from project $PROJECT, region $REGION"
    for each in $POLICIES; do policy "$each"; done
    channels
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
    gone "secret $TOKEN" secrets "$TOKEN"
    gone "repository voxbatch" "artifacts repositories" voxbatch --location="$REGION"
    for each in "$RUN" "$DISPATCH" "$LISTEN"; do roles_on_recordings revoke "$each"; done
    for each in "$RUN" "$LISTEN"; do revoke "$each" roles/storage.objectViewer "storage buckets" "gs://$BUCKET_MODELS"; done
    revoke "serviceAccount:$BUILD_SA" roles/storage.objectUser "storage buckets" "gs://$BUCKET_MODELS"
    revoke "serviceAccount:$BUILD_SA" roles/logging.logWriter projects "$PROJECT"
    for each in $START_PROJECT_ROLES; do revoke "$START" "$each" projects "$PROJECT"; done
    for each in run dispatch start listen build; do
        gone "service account voxbatch-$each" "iam service-accounts" "voxbatch-$each@$PROJECT.iam.gserviceaccount.com"
    done
    for each in "$BUCKET_IN" "$BUCKET_OUT" "$BUCKET_MODELS"; do bucket "$each"; done

    if ((CHANGES == 0)); then say "Nothing to remove."; else say "$CHANGES removals."; fi
    say "The APIs stay enabled, and Cloud Storage's own account may still publish in the project: others may need both."
}

main
