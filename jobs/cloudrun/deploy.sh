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
IMAGE="${IMAGE:-$REGION-docker.pkg.dev/$PROJECT/voxbatch/voxbatch:latest}"
TASKS="${TASKS:-1}"
PARALLELISM="${PARALLELISM:-0}"
MAX_RETRIES="${MAX_RETRIES:-5}"
TASK_TIMEOUT="${TASK_TIMEOUT:-3600}"
SCHEDULE="${SCHEDULE:-0 2 * * *}"
TIME_ZONE="${TIME_ZONE:-Etc/UTC}"
USD_PER_HOUR="${USD_PER_HOUR:-1.421}"
MODEL="${MODEL:-}"
CHANNEL="${CHANNEL:-}"
BUILD="${BUILD:-no}"
one_of BUILD "$BUILD" yes no
VERIFY="${VERIFY:-$BUILD}"
one_of VERIFY "$VERIFY" yes no
WEIGHTS="${WEIGHTS:-bucket}"
one_of WEIGHTS "$WEIGHTS" bucket image none
ALERT_EMAIL="${ALERT_EMAIL:-}"
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
[[ -z "$CHANNEL" || "$CHANNEL" =~ ^projects/[^/]+/notificationChannels/[^/]+$ ]] ||
    die "CHANNEL=$CHANNEL: it is projects/…/notificationChannels/…, see: gcloud beta monitoring channels list"
email() {
    [[ -z "$ALERT_EMAIL" || "$ALERT_EMAIL" =~ ^[^@,=[:space:]]+@[^@,=[:space:]]+$ ]] ||
        die "ALERT_EMAIL=$ALERT_EMAIL: it is an address, such as ops@example.org"
}
email

# ── how things are written ────────────────────────────────────────────────────────────────────────────────────────────

# render FILE: put its text with ${NAME} filled in into $RENDERED. A line that ends in "# if NAME" stays only if NAME is
# set.
render() {
    local name
    RENDERED="$WORK/$(basename "$1")"
    {
        for name in TOKEN_THERE MODEL CHANNEL; do
            if [[ -n "${!name}" ]]; then printf 's/  # if %s$//\n' "$name"; else printf '/  # if %s$/d\n' "$name"; fi
        done
        for name in PROJECT REGION IMAGE RUN_SA DISPATCH_SA LISTEN_SA TOKEN OUT BUCKET_IN BUCKET_OUT \
            UPLOADS_SUBSCRIPTION NIGHTLY_SUBSCRIPTION USD_PER_HOUR MODEL CHANNEL TASKS PARALLELISM MAX_RETRIES \
            TASK_TIMEOUT UPLOADS_WAIT_S NIGHTLY_WAIT_S; do
            printf '%s=%s\n' "$name" "${!name}"
        done | sed -e 's/[\\&|]/\\&/g' -e 's/^\([A-Z_]*\)=\(.*\)$/s|${\1}|\2|g/'
    } >"$WORK/fill"
    sed -f "$WORK/fill" "$HERE/$1" >"$WORK/text"
    FINGERPRINT="$(fingerprint <"$WORK/text")"
    sed "s|\${FINGERPRINT}|$FINGERPRINT|g" "$WORK/text" >"$RENDERED"
}

# ── what is made, in order ────────────────────────────────────────────────────────────────────────────────────────────

apis() {
    local name missing=()
    ask gcloud services list --enabled --format='value(config.name)' || true
    for name in run artifactregistry pubsub eventarc eventarcpublishing workflows workflowexecutions cloudscheduler \
        secretmanager storage cloudbuild containeranalysis containerscanning monitoring logging iam iamcredentials \
        cloudresourcemanager; do
        grep -qxF "$name.googleapis.com" <<<"$ANSWER" || missing+=("$name.googleapis.com")
    done
    if ((${#missing[@]} == 0)); then
        same "APIs"
        return
    fi
    change "enable ${missing[*]}" gcloud services enable "${missing[@]}"
    # Each service's own account is created with its first use. The roles below need these accounts now.
    for name in "${missing[@]}"; do
        case "$name" in
            pubsub.* | eventarc.* | cloudscheduler.* | workflows.*)
                change "make the service agent of $name" gcloud beta services identity create --service="$name"
                ;;
        esac
    done
}

repository() {
    if ask gcloud artifacts repositories describe voxbatch --location="$REGION"; then
        same "repository voxbatch"
    else
        change "make repository voxbatch" gcloud artifacts repositories create voxbatch --location="$REGION" \
            --repository-format=docker --description="Images of voxbatch"
    fi
}

bucket() {
    local name="$1" closed
    if ! ask gcloud storage buckets describe "gs://$name" \
        --format='value[separator=" "](location.lower(),uniform_bucket_level_access,public_access_prevention)'; then
        change "make bucket $name" gcloud storage buckets create "gs://$name" --location="$REGION" \
            --uniform-bucket-level-access --public-access-prevention
        return
    fi
    closed="${ANSWER#* }"
    # Eventarc's trigger must be in the region of the bucket.
    [[ "${ANSWER%% *}" == "$REGION" ]] ||
        die "bucket $name lies in ${ANSWER%% *}, not in $REGION: choose that REGION, or another bucket"
    if [[ "$closed" == "True enforced" ]]; then
        same "bucket $name"
    else
        change "close bucket $name to the public" gcloud storage buckets update "gs://$name" \
            --uniform-bucket-level-access --public-access-prevention
    fi
}

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

account() {
    if ask gcloud iam service-accounts describe "$1@$PROJECT.iam.gserviceaccount.com"; then
        same "service account $1"
    else
        change "make service account $1" gcloud iam service-accounts create "$1" --display-name="$2"
    fi
}

# The hub token: read only from HF_TOKEN, passed only through standard input. $TOKEN_THERE says whether jobs get it.
# shellcheck disable=SC2034 # render reads it by name
token() {
    TOKEN_THERE=""
    if ask gcloud secrets describe "$TOKEN"; then
        same "secret $TOKEN"
        TOKEN_THERE=yes
    elif [[ -n "$HUB_TOKEN" ]]; then
        change "make secret $TOKEN" gcloud secrets create "$TOKEN" --replication-policy=automatic
        TOKEN_THERE=yes
    else
        same "no hub token: set HF_TOKEN for a gated or private model"
        return
    fi
    if [[ -n "$HUB_TOKEN" ]]; then
        if ask gcloud secrets versions access latest --secret="$TOKEN" && [[ "$ANSWER" == "$HUB_TOKEN" ]]; then
            same "the token in $TOKEN"
        else
            STDIN="$HUB_TOKEN"
            change "put the token into $TOKEN" gcloud secrets versions add "$TOKEN" --data-file=-
            STDIN=""
        fi
        ANSWER=""
    fi
}

# A tag may name another image tomorrow, so the job gets the digest that the tag stands for today.
image() {
    [[ "$IMAGE" == *-docker.pkg.dev/* ]] || return 0
    if ask gcloud artifacts docker images describe "$IMAGE" --format='value(image_summary.digest)'; then
        IMAGE="${IMAGE%%@*}"
        [[ "${IMAGE##*/}" != *:* ]] || IMAGE="${IMAGE%:*}"
        IMAGE="$IMAGE@$ANSWER"
    elif [[ "$DRY_RUN" == yes ]]; then
        say "! $IMAGE is not there yet"
    else
        die "$IMAGE is not there yet: build it, with BUILD=yes and the same settings. All that does not need it is done."
    fi
}

# Create a job from NAME's file; replace the job if its text differs from the text of the last replacement.
job() {
    render "$2"
    if ask gcloud run jobs describe "$1" --region="$REGION" --format='value(metadata.labels.voxbatch-config)' &&
        [[ "$ANSWER" == "$FINGERPRINT" ]]; then
        same "job $1"
    else
        change "put job $1" gcloud run jobs replace "$RENDERED" --region="$REGION"
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

# Find the notification channel of an earlier deployment, if CHANNEL is not given. Without one, ask for an address; and
# refuse to deploy alerts that nobody would read.
find_channel() {
    local name address
    [[ "$ALERTS" == yes && -z "$CHANNEL" ]] || return 0
    ask gcloud beta monitoring channels list --filter='displayName="voxbatch"' \
        --format='value(name,labels.email_address)' || true
    while IFS=$'\t' read -r name address; do
        if [[ -z "$ALERT_EMAIL" || "$address" == "$ALERT_EMAIL" ]]; then CHANNEL="$name" ADDRESS="$address"; fi
    done <<<"$ANSWER"
    if [[ -z "$CHANNEL$ALERT_EMAIL" && -t 0 ]]; then
        read -r -p "E-mail address for alerts of failed runs, lost schedules and waiting uploads: " ALERT_EMAIL || true
        email
    fi
    [[ -n "$CHANNEL$ALERT_EMAIL" ]] ||
        die "whom should alerts tell? Set ALERT_EMAIL=you@example.org, or CHANNEL=projects/…/notificationChannels/…, or
    ALERTS=no: then nobody hears of failed runs and of uploads that wait. Nothing was changed."
}

channel() {
    if [[ -n "$CHANNEL" ]]; then
        same "notification channel ${ADDRESS:-$CHANNEL}"
        return
    fi
    change "make notification channel $ALERT_EMAIL" gcloud beta monitoring channels create --display-name=voxbatch \
        --type=email --channel-labels="email_address=$ALERT_EMAIL"
    [[ "$DRY_RUN" == yes ]] || find_channel
}

policy() {
    render "alerts/$1.yaml"
    ask gcloud alpha monitoring policies list --filter="displayName=\"voxbatch: ${1//-/ }\"" \
        --format='value(name,userLabels.voxbatch_config)' || true
    if [[ -z "$ANSWER" ]]; then
        change "make alert policy ${1//-/ }" gcloud alpha monitoring policies create --policy-from-file="$RENDERED"
    elif [[ "${ANSWER##*$'\t'}" == "config-$FINGERPRINT" ]]; then
        same "alert policy ${1//-/ }"
    else
        change "set alert policy ${1//-/ } right" gcloud alpha monitoring policies update "${ANSWER%%$'\t'*}" \
            --policy-from-file="$RENDERED"
    fi
}

main() {
    local number storage_agent pubsub_agent prefixes="" each
    say "voxbatch in project $PROJECT, region $REGION: uploads by $UPLOADS, nightly $NIGHTLY, alerts $ALERTS"
    find_channel
    apis
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
            IMAGE=us-docker.pkg.dev/cloudrun/container/job:latest job voxbatch job.yaml
        fi
        build_image
    else
        image
        find_weights
    fi
    job voxbatch job.yaml
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
        job voxbatch-dispatch dispatch.yaml
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
        job voxbatch-nightly nightly.yaml
        grant "$START" roles/run.invoker "run jobs" voxbatch-nightly --region="$REGION"
        schedule voxbatch-nightly voxbatch-nightly "$SCHEDULE" "$TIME_ZONE"
    fi
    if [[ "$ALERTS" == yes ]]; then
        channel
        for each in $METRICS; do metric "$each"; done
        for each in $POLICIES; do policy "$each"; done
    fi
    [[ "$VERIFY" == no ]] || verify_deployment
    [[ "$BUILD" == no ]] || scan_image

    if ((CHANGES == 0)); then
        say "Nothing to change."
    elif [[ "$DRY_RUN" == yes ]]; then
        say "$CHANGES changes would be made."
    else
        say "$CHANGES changes made."
    fi
    say "By hand: gcloud run jobs execute voxbatch --region=$REGION --tasks=8 \\"
    say "           --args=run,gs://$BUCKET_IN/day.jsonl,-o,$OUT/day"
}

main
