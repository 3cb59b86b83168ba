#!/usr/bin/env bash
# Set up voxbatch on Cloud Run, or update an existing set-up. The script looks before it acts: a second run changes
# nothing.
set -euo pipefail

usage() {
    cat <<'END'
usage: [NAME=VALUE …] jobs/cloudrun/deploy.sh [--dry-run]

Makes, in one project and region: an Artifact Registry repository, three buckets, a topic with its dead letters, service
accounts with the least roles, the job "voxbatch" (one L4 a task), what starts it (an upload, or the night), and alerts.

  setting        what it is                                                                     if it is not given
  PROJECT        the project                                                                    gcloud's own
  REGION         a region of Cloud Run that has L4s                                             europe-west1
  BUILD          yes or no: build IMAGE and fetch the weights, by Cloud Build; it takes an hour  no
  VERIFY         yes or no: run doctor and transcribe one recording on an L4 at the end         the same as BUILD
  IMAGE          the container                     REGION-docker.pkg.dev/PROJECT/voxbatch/voxbatch:latest
  BUCKET_IN      uploads: in/ and nightly/ in it                                                PROJECT-voxbatch-in
  BUCKET_OUT     outputs: out/ in it                                                            PROJECT-voxbatch-out
  BUCKET_MODELS  weights                                                                        PROJECT-voxbatch-models
  UPLOADS        who takes what is uploaded to in/: workflow (starts the job for each manifest),
                 worker (a GPU that is always on) or none                                       workflow
  NIGHTLY        yes or no: what is uploaded to nightly/ is run by night                        yes
  SCHEDULE       when, as cron says it                                                          0 2 * * *
  TIME_ZONE      of SCHEDULE                                                                    Etc/UTC
  TASKS          tasks of a job execution that says no other number                             1
  PARALLELISM    tasks at a time; 0: as many as the GPU quota allows                            0
  MAX_RETRIES    new attempts of a task, each of which goes on where the last one stopped       5
  TASK_TIMEOUT   seconds for an attempt; GPU tasks are sure to get no more than 3600            3600
  USD_PER_HOUR   what an hour of a task costs, for what a run says that it cost                 1.421
  MODEL          --model of every run                        the weights in BUCKET_MODELS, or else the image's own
  WEIGHTS        where a build puts them: bucket (BUCKET_MODELS), image or none                 bucket
  MODEL_REVISION the branch, tag or commit of the hub that a build takes                        main
  HF_TOKEN       the hub token, put into Secret Manager                                         the one that is there
  ALERTS         yes or no                                                                      yes
  ALERT_EMAIL    whom they tell: an address                             the one that is there; asked for on a terminal
  CHANNEL        another notification channel: projects/…/notificationChannels/…                made for ALERT_EMAIL
  RETRY_S        seconds until what Google does not know yet is tried again, for ten minutes    10

  --dry-run      look, and say what would be changed
  --help         this

Remove it all with teardown.sh.
END
}

# shellcheck source-path=SCRIPTDIR source=settings.sh
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
# shellcheck source-path=SCRIPTDIR source=steps.sh
source "$HERE/steps.sh"
# shellcheck source-path=SCRIPTDIR source=build.sh
source "$HERE/build.sh"
# shellcheck source-path=SCRIPTDIR source=verify.sh
source "$HERE/verify.sh"

case "${1:-}" in
    --help | -h)
        usage
        exit 0
        ;;
    --dry-run) DRY_RUN=yes ;;
    "") ;;
    *) die "unknown argument $1; see --help" ;;
esac

settings
settings_of_deployment
TASKS="${TASKS:-1}"
PARALLELISM="${PARALLELISM:-0}"
MAX_RETRIES="${MAX_RETRIES:-5}"
TASK_TIMEOUT="${TASK_TIMEOUT:-3600}"
SCHEDULE="${SCHEDULE:-0 2 * * *}"
TIME_ZONE="${TIME_ZONE:-Etc/UTC}"
USD_PER_HOUR="${USD_PER_HOUR:-1.421}"
VERIFY="${VERIFY:-$BUILD}"
one_of VERIFY "$VERIFY" yes no
# Alert if the oldest upload is older than this. To in/: after two sweeps, or a day for a worker, which keeps a message
# for as long as its run takes. To nightly/: a day ends at midnight UTC, and may wait for the next night and an hour of
# work; other schedules may skip days. (SC2034: render reads both by name.)
# shellcheck disable=SC2034
if [[ "$UPLOADS" == worker ]]; then UPLOADS_WAIT_S=86400; else UPLOADS_WAIT_S=7200; fi
# shellcheck disable=SC2034
if [[ "$SCHEDULE $TIME_ZONE" == "0 2 * * * Etc/UTC" ]]; then NIGHTLY_WAIT_S=97200; else NIGHTLY_WAIT_S=604800; fi

number TASKS "$TASKS" 1 10000
number PARALLELISM "$PARALLELISM" 0 10000
number MAX_RETRIES "$MAX_RETRIES" 0 10
number TASK_TIMEOUT "$TASK_TIMEOUT" 60 604800
[[ "$USD_PER_HOUR" =~ ^[0-9]+(\.[0-9]+)?$ ]] || die "USD_PER_HOUR=$USD_PER_HOUR: it is a price, such as 1.42"
# What render fills in.
CHOICES="TOKEN_THERE MODEL CHANNEL"
VALUES="PROJECT REGION IMAGE RUN_SA DISPATCH_SA LISTEN_SA TOKEN OUT BUCKET_IN BUCKET_OUT UPLOADS_SUBSCRIPTION"
VALUES="$VALUES NIGHTLY_SUBSCRIPTION USD_PER_HOUR MODEL CHANNEL TASKS PARALLELISM MAX_RETRIES TASK_TIMEOUT"
VALUES="$VALUES UPLOADS_WAIT_S NIGHTLY_WAIT_S"

# ── what is made, in order ────────────────────────────────────────────────────────────────────────────────────────────

topic() {
    if ask gcloud pubsub topics describe "$1"; then
        same "topic ${1##*/}"
    else
        change "make topic ${1##*/}" gcloud pubsub topics create "$1"
    fi
}

# subscription NAME FILTER: a subscription from which a listener pulls uploads.
# - 600 s to acknowledge: the client extends the lease for as long as a run takes. The 600 s only limit the time in which
#   a worker may be too busy to extend it, for example while it loads a model.
# - 20 deliveries before a message goes to the dead-letter topic: each listener that is stopped or removed counts as one.
#   A message that can never be run is sent to the dead-letter topic by the listener itself, at once and with its reason.
# - 31 days of retention, the maximum: an upload waits until somebody has repaired the fault.
# - Pub/Sub cannot change the filter of a subscription. The listener checks the event's type and place itself, too.
subscription() {
    local name="$1" filter="$2"
    local common=(--ack-deadline=600 --message-retention-duration=31d --expiration-period=never
        --dead-letter-topic="$DEAD_TOPIC" --max-delivery-attempts=20 --min-retry-delay=60s --max-retry-delay=600s)
    local want="600 2678400s $DEAD_TOPIC 20 60s 600s"
    if ! ask gcloud pubsub subscriptions describe "$name" --format='value[separator=" "](
        ackDeadlineSeconds, messageRetentionDuration, deadLetterPolicy.deadLetterTopic,
        deadLetterPolicy.maxDeliveryAttempts, retryPolicy.minimumBackoff, retryPolicy.maximumBackoff,
        expirationPolicy.ttl)'; then
        change "make subscription ${name##*/}" gcloud pubsub subscriptions create "$name" --topic="$TOPIC" \
            "${common[@]}" --message-filter="$filter"
    elif [[ "${ANSWER% }" == "$want" ]]; then # a limited lifetime would follow in the answer
        same "subscription ${name##*/}"
    else
        change "set subscription ${name##*/} right" gcloud pubsub subscriptions update "$name" "${common[@]}"
    fi
}

dead_letters() {
    if ask gcloud pubsub subscriptions describe voxbatch-dead; then
        same "subscription voxbatch-dead"
    else
        change "make subscription voxbatch-dead" gcloud pubsub subscriptions create voxbatch-dead --topic="$DEAD_TOPIC" \
            --ack-deadline=60 --message-retention-duration=31d --expiration-period=never
    fi
}

worker() {
    render worker.yaml
    if ask gcloud beta run worker-pools describe voxbatch-listen --region="$REGION" \
        --format='value(metadata.labels.voxbatch-config)' && [[ "$ANSWER" == "$FINGERPRINT" ]]; then
        same "worker pool voxbatch-listen"
    else
        change "put worker pool voxbatch-listen; it bills until it is deleted" \
            gcloud beta run worker-pools replace "$RENDERED"
    fi
}

no_worker() {
    ask gcloud iam service-accounts describe "$LISTEN_SA" || return 0
    if ask gcloud beta run worker-pools describe voxbatch-listen --region="$REGION" --format='value(metadata.name)'; then
        change "delete worker pool voxbatch-listen" \
            gcloud beta run worker-pools delete voxbatch-listen --region="$REGION"
    fi
    roles_of_transcriber revoke "$LISTEN"
    roles_of_listener revoke "$LISTEN" "$UPLOADS_SUBSCRIPTION"
    change "delete service account voxbatch-listen" gcloud iam service-accounts delete "$LISTEN_SA"
}

workflow() {
    local values="JOB=projects/$PROJECT/locations/$REGION/jobs/voxbatch-dispatch,BUCKET=$BUCKET_IN,PREFIX=in/"
    local text
    text="$({ cat "$HERE/workflow.yaml" && printf '%s' "$values $START_SA"; } | fingerprint)"
    if ask gcloud workflows describe voxbatch --location="$REGION" --format='value(labels.voxbatch-config)' &&
        [[ "$ANSWER" == "$text" ]]; then
        same "workflow voxbatch"
    else
        change "put workflow voxbatch" gcloud workflows deploy voxbatch --location="$REGION" \
            --source="$HERE/workflow.yaml" --service-account="$START_SA" --set-env-vars="$values" \
            --labels="voxbatch-config=$text" --description="An uploaded manifest wakes the dispatcher of voxbatch"
    fi
}

trigger() {
    local text
    text="$(printf '%s' "$BUCKET_IN $START_SA" | fingerprint)"
    if ask gcloud eventarc triggers describe voxbatch --location="$REGION" --format='value(labels.voxbatch-config)'; then
        if [[ "$ANSWER" == "$text" ]]; then
            same "trigger voxbatch"
            return
        fi
        change "delete trigger voxbatch, which watches another bucket" \
            gcloud eventarc triggers delete voxbatch --location="$REGION"
    fi
    change "make trigger voxbatch (it takes a few minutes to work)" \
        gcloud eventarc triggers create voxbatch --location="$REGION" \
        --destination-workflow=voxbatch --destination-workflow-location="$REGION" \
        --event-filters=type=google.cloud.storage.object.v1.finalized --event-filters="bucket=$BUCKET_IN" \
        --service-account="$START_SA" --labels="voxbatch-config=$text"
}

no_workflow() {
    local role
    if ask gcloud eventarc triggers describe voxbatch --location="$REGION" --format='value(name)'; then
        change "delete trigger voxbatch" gcloud eventarc triggers delete voxbatch --location="$REGION"
    fi
    if ask gcloud workflows describe voxbatch --location="$REGION" --format='value(name)'; then
        change "delete workflow voxbatch" gcloud workflows delete voxbatch --location="$REGION"
    fi
    for role in $START_PROJECT_ROLES; do revoke "$START" "$role" projects "$PROJECT"; done
    no_schedule voxbatch-sweep
    no_job voxbatch-dispatch
}

# notifications "PREFIX …": the in bucket notifies the topic of uploads below these prefixes only.
notifications() {
    local wanted=" $1 " id topic has
    ask gcloud storage buckets notifications list "gs://$BUCKET_IN" --format='value("Notification Configuration".id,
        "Notification Configuration".topic,"Notification Configuration".object_name_prefix)' || true
    while IFS=$'\t' read -r id topic has; do
        [[ "$topic" == *"/$TOPIC" ]] || continue
        if [[ -n "$has" && "$wanted" == *" $has "* ]]; then
            wanted="${wanted/ $has / }"
            same "notification of $BUCKET_IN/$has"
        else
            change "delete the notification of $BUCKET_IN/$has" gcloud storage buckets notifications delete \
                "projects/_/buckets/$BUCKET_IN/notificationConfigs/$id"
        fi
    done <<<"$ANSWER"
    for has in $wanted; do
        change "make the notification of $BUCKET_IN/$has" gcloud storage buckets notifications create "gs://$BUCKET_IN" \
            --topic="$TOPIC" --event-types=OBJECT_FINALIZE --object-prefix="$has" --payload-format=json \
            --skip-topic-setup
    done
}

# schedule NAME JOB WHEN TIME_ZONE: execute a job at these times.
schedule() {
    local name="$1" when="$3" zone="$4" uri text verb=create headers=--headers
    uri="https://run.googleapis.com/v2/projects/$PROJECT/locations/$REGION/jobs/$2:run"
    text="executes $2, config $(printf '%s' "$uri $when $zone $START_SA" |
        cat - "$HERE/schedule-request.json" | fingerprint)"
    if ask gcloud scheduler jobs describe "$name" --location="$REGION" --format='value(description)'; then
        if [[ "$ANSWER" == "$text" ]]; then
            same "schedule $name"
            return
        fi
        verb=update headers=--update-headers
    fi
    change "put schedule $name: $when, $zone" gcloud scheduler jobs "$verb" http "$name" \
        --location="$REGION" --schedule="$when" --time-zone="$zone" --uri="$uri" --http-method=POST \
        "$headers=Content-Type=application/json" --message-body-from-file="$HERE/schedule-request.json" \
        --oauth-service-account-email="$START_SA" --max-retry-attempts=3 --description="$text"
}

no_schedule() {
    ask gcloud scheduler jobs describe "$1" --location="$REGION" --format='value(name)' || return 0
    change "delete schedule $1" gcloud scheduler jobs delete "$1" --location="$REGION"
}

no_job() {
    ask gcloud run jobs describe "$1" --region="$REGION" --format='value(metadata.name)' || return 0
    change "delete job $1" gcloud run jobs delete "$1" --region="$REGION"
}

metric() {
    local verb=create
    render "metrics/$1.yaml"
    if ask gcloud logging metrics describe "voxbatch_${1//-/_}" --format='value(description)'; then
        if [[ "$ANSWER" == *"config $FINGERPRINT" ]]; then
            same "log metric voxbatch_${1//-/_}"
            return
        fi
        verb=update
    fi
    change "put log metric voxbatch_${1//-/_}" gcloud logging metrics "$verb" "voxbatch_${1//-/_}" \
        --config-from-file="$RENDERED"
}

main() {
    local number storage_agent pubsub_agent prefixes="" each
    say "voxbatch in project $PROJECT, region $REGION: uploads by $UPLOADS, nightly $NIGHTLY, alerts $ALERTS"
    find_channel "failed runs, lost schedules and waiting uploads"
    apis run artifactregistry pubsub eventarc eventarcpublishing workflows workflowexecutions cloudscheduler \
        secretmanager storage cloudbuild containeranalysis containerscanning monitoring logging iam iamcredentials \
        cloudresourcemanager
    need gcloud projects describe "$PROJECT" --format='value(projectNumber)'
    number="$ANSWER"
    pubsub_agent="serviceAccount:service-$number@gcp-sa-pubsub.iam.gserviceaccount.com"
    need gcloud storage service-agent
    storage_agent="serviceAccount:$ANSWER"

    repository
    for each in "$BUCKET_IN" "$BUCKET_OUT" "$BUCKET_MODELS"; do bucket "$each"; done
    account voxbatch-run "voxbatch: transcribes"
    account voxbatch-dispatch "voxbatch: reads uploads and starts runs"
    account voxbatch-start "voxbatch: wakes the dispatcher"
    topic "$DEAD_TOPIC"
    dead_letters
    topic "$TOPIC"
    # Messages that people send have no objectId.
    subscription "$UPLOADS_SUBSCRIPTION" \
        'NOT attributes:objectId OR (attributes.eventType = "OBJECT_FINALIZE" AND hasPrefix(attributes.objectId, "in/"))'
    subscription "$NIGHTLY_SUBSCRIPTION" \
        'attributes.eventType = "OBJECT_FINALIZE" AND hasPrefix(attributes.objectId, "nightly/")'
    grant "$storage_agent" roles/pubsub.publisher "pubsub topics" "$TOPIC"
    # Pub/Sub itself moves a message to the dead-letter topic after its last delivery: it publishes there, and
    # acknowledges here.
    grant "$pubsub_agent" roles/pubsub.publisher "pubsub topics" "$DEAD_TOPIC"
    for each in "$UPLOADS_SUBSCRIPTION" "$NIGHTLY_SUBSCRIPTION"; do
        grant "$pubsub_agent" roles/pubsub.subscriber "pubsub subscriptions" "$each"
        roles_of_listener grant "$DISPATCH" "$each"
    done
    roles_on_recordings grant "$DISPATCH"
    token
    roles_of_transcriber grant "$RUN"

    if [[ "$BUILD" == yes ]]; then
        if ! ask gcloud run jobs describe voxbatch --region="$REGION"; then
            say "  first with a sample image of Google's: a GPU quota that is missing shows here, not after the build"
            IMAGE=us-docker.pkg.dev/cloudrun/container/job:latest put job voxbatch job.yaml
        fi
        build_image
    else
        image
        find_weights
    fi
    put job voxbatch job.yaml
    grant "$DISPATCH" roles/run.jobsExecutorWithOverrides "run jobs" voxbatch --region="$REGION"
    grant "$DISPATCH" roles/run.viewer "run jobs" voxbatch --region="$REGION"

    # Only one mechanism reacts to an upload: first remove the one that was not chosen.
    [[ "$UPLOADS" == workflow ]] || no_workflow
    [[ "$UPLOADS" == worker ]] || no_worker
    if [[ "$NIGHTLY" == no ]]; then
        no_schedule voxbatch-nightly
        no_job voxbatch-nightly
    fi
    [[ "$UPLOADS" == none ]] || prefixes="in/"
    [[ "$NIGHTLY" == no ]] || prefixes="$prefixes nightly/"
    notifications "$prefixes"

    if [[ "$UPLOADS" == workflow ]]; then
        put job voxbatch-dispatch dispatch.yaml
        grant "$START" roles/run.invoker "run jobs" voxbatch-dispatch --region="$REGION"
        for each in $START_PROJECT_ROLES; do grant "$START" "$each" projects "$PROJECT"; done
        # Eventarc creates its own topic for the bucket's events; its name is not known in advance.
        grant "$storage_agent" roles/pubsub.publisher projects "$PROJECT"
        workflow
        trigger
        schedule voxbatch-sweep voxbatch-dispatch "0 * * * *" Etc/UTC
    fi
    if [[ "$UPLOADS" == worker ]]; then
        account voxbatch-listen "voxbatch: transcribes uploads at once"
        roles_of_transcriber grant "$LISTEN"
        roles_of_listener grant "$LISTEN" "$UPLOADS_SUBSCRIPTION"
        worker
    fi
    if [[ "$NIGHTLY" == yes ]]; then
        put job voxbatch-nightly nightly.yaml
        grant "$START" roles/run.invoker "run jobs" voxbatch-nightly --region="$REGION"
        schedule voxbatch-nightly voxbatch-nightly "$SCHEDULE" "$TIME_ZONE"
    fi
    if [[ "$ALERTS" == yes ]]; then
        channel
        for each in $METRICS; do metric "$each"; done
        for each in $POLICIES; do policy alerts "$each"; done
    fi
    [[ "$VERIFY" == no ]] || verify_deployment
    [[ "$BUILD" == no ]] || scan_image

    summary
    say "By hand: gcloud run jobs execute voxbatch --region=$REGION --tasks=8 \\"
    say "           --args=run,gs://$BUCKET_IN/day.jsonl,-o,$OUT/day"
}

main
