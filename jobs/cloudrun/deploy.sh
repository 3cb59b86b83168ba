#!/usr/bin/env bash
# Set up voxbatch on Cloud Run, or update an existing set-up. Terraform makes everything (terraform/), so that a second run
# changes nothing; this script checks the settings, builds the image, and tries the result on a GPU.
set -euo pipefail

usage() {
    cat <<'END'
usage: [NAME=VALUE …] jobs/cloudrun/deploy.sh [--dry-run] [--defaults]

Makes, in one project and region: an Artifact Registry repository, buckets, a topic with its dead letters, service
accounts with the least roles, the job "voxbatch" (one L4 a task), what starts it (an upload, or the night), and alerts.

  setting        what it is                                                                     if it is not given
  PROJECT        the project                                                                    gcloud's own
  REGION         a region of Cloud Run that has L4s                                             europe-west1
  BUILD          yes or no: build IMAGE and fetch the weights, by Cloud Build; it takes an hour  no
  VERIFY         yes or no: run doctor, transcribe one recording and compile the kernels on an L4  the same as BUILD
  IMAGE          the container                     REGION-docker.pkg.dev/PROJECT/voxbatch/voxbatch:latest
  BASE_IMAGE     the vLLM image of a build                                                      the Dockerfile's
  SCAN           yes or no: let Google look for vulnerabilities in all images of the project; 0.26 USD an image  no
  BUCKET_IN      uploads                                                                        PROJECT-voxbatch-in
  BUCKET_OUT     outputs: out/ in it                                                            PROJECT-voxbatch-out
  BUCKET_MODELS  weights                                                                        PROJECT-voxbatch-models
  BUCKET_KERNELS compiled kernels                                                               PROJECT-voxbatch-kernels
  BUCKET_STATE   Terraform's state                                                              PROJECT-voxbatch-state
  UPLOADS        who takes what is uploaded to PREFIX_UPLOADS: workflow (starts the job for each manifest),
                 worker (a GPU that is always on) or none                                       workflow
  NIGHTLY        yes or no: what is uploaded to PREFIX_NIGHTLY is run by night                  yes
  PREFIX_UPLOADS, PREFIX_NIGHTLY  folders of BUCKET_IN                                          in/, nightly/
  SCHEDULE       when, as cron says it                                                          0 2 * * *
  TIME_ZONE      of SCHEDULE                                                                    Etc/UTC
  TASKS          tasks of a job execution that says no other number                             1
  MAX_TASKS      tasks that the dispatcher may give a run; a run that needs more is a dead letter  100
  MAX_USD        what a run may be expected to cost; a dearer one is a dead letter. 0: no limit   0
  MAX_USD_PER_DAY  the same for all runs that uploads start in a UTC day, and for those of the nights   300
  BUDGET_USD     a month in the project: a budget that tells at 50, 90 and 100 % of it. 0: none   0
  BATCH_WINDOW   seconds of uploads that are started together; 0: each by itself                  60
  PARALLELISM    tasks at a time; 0: as many as the quotas allow                                0
  MAX_RETRIES    new attempts of a task, each of which goes on where the last one stopped       5
  TASK_TIMEOUT   seconds for an attempt, 43200 at most; over an hour is in preview              3600
  MEMORY_GIB     memory of a task, from 16 to 32                                                16
  DISK_GIB       disk of a task for weights and kernels; 0: they are in memory                  20
  USD_PER_HOUR   what an hour of a task costs, for what a run says that it cost    1.306; with 32 GiB 1.421
  MODEL          --model of every run                        the weights in BUCKET_MODELS, or else the image's own
  WEIGHTS        where a build puts them: bucket (BUCKET_MODELS), image or none                 bucket
  MODEL_REVISION the branch, tag or commit of the hub that a build takes                        main
  HF_TOKEN       the hub token, put into Secret Manager                                         the one that is there
  ALERTS         yes or no                                                                      yes
  ALERT_EMAIL    whom they tell: an address                             the one that is there; asked for on a terminal
  CHANNEL        another notification channel: projects/…/notificationChannels/…                made for ALERT_EMAIL
  RETRY_S        seconds until what Google does not know yet is tried again, for ten minutes    10

  REPLACE        yes or no: delete what holds messages or data, where a setting replaces it      no; asked for on a terminal

The settings of the last run are the defaults of the next one: BUCKET_STATE remembers all but BUILD, VERIFY, HF_TOKEN and
REPLACE. To change one, give only it.

  --dry-run      show what would be changed
  --defaults     take no notice of the settings of the last run
  --help         this

Remove it all with teardown.sh.
END
}

# shellcheck source-path=SCRIPTDIR source=settings.sh
source "$(dirname "${BASH_SOURCE[0]}")/settings.sh"
# shellcheck source-path=SCRIPTDIR source=terraform.sh
source "$HERE/terraform.sh"
# shellcheck source-path=SCRIPTDIR source=build.sh
source "$HERE/build.sh"
# shellcheck source-path=SCRIPTDIR source=verify.sh
source "$HERE/verify.sh"

option "$@"
RECALLED="$REMEMBERED $REMEMBERED_IF_GIVEN"
settings
settings_of_deployment
UPLOADS="${UPLOADS:-workflow}"
NIGHTLY="${NIGHTLY:-yes}"
TASKS="${TASKS:-1}"
PARALLELISM="${PARALLELISM:-0}"
MAX_TASKS="${MAX_TASKS:-100}"
MAX_USD="${MAX_USD:-0}"
MAX_USD_PER_DAY="${MAX_USD_PER_DAY:-300}"
BUDGET_USD="${BUDGET_USD:-0}"
BATCH_WINDOW="${BATCH_WINDOW:-60}"
MAX_RETRIES="${MAX_RETRIES:-5}"
TASK_TIMEOUT="${TASK_TIMEOUT:-3600}"
MEMORY_GIB="${MEMORY_GIB:-16}"
DISK_GIB="${DISK_GIB:-20}"
SCHEDULE="${SCHEDULE:-0 2 * * *}"
TIME_ZONE="${TIME_ZONE:-Etc/UTC}"
PREFIX_UPLOADS="${PREFIX_UPLOADS:-in/}"
PREFIX_NIGHTLY="${PREFIX_NIGHTLY:-nightly/}"
# One L4, 8 vCPU, and the memory: see voxbatch/prices.yaml.
USD_PER_HOUR="${USD_PER_HOUR:-$(awk -v gib="$MEMORY_GIB" 'BEGIN { printf "%.3f", 0.6721 + 8 * 0.0648 + gib * 0.0072 }')}"
VERIFY="${VERIFY:-$BUILD}"

one_of UPLOADS "$UPLOADS" workflow worker none
one_of NIGHTLY "$NIGHTLY" yes no
one_of VERIFY "$VERIFY" yes no
number TASKS "$TASKS" 1 10000
number PARALLELISM "$PARALLELISM" 0 10000
number MAX_TASKS "$MAX_TASKS" 1 10000
number MAX_USD "$MAX_USD" 0 1000000
number MAX_USD_PER_DAY "$MAX_USD_PER_DAY" 0 1000000
number BUDGET_USD "$BUDGET_USD" 0 100000000
number BATCH_WINDOW "$BATCH_WINDOW" 0 86400
number MAX_RETRIES "$MAX_RETRIES" 0 10
number TASK_TIMEOUT "$TASK_TIMEOUT" 60 43200
number MEMORY_GIB "$MEMORY_GIB" 16 32
number DISK_GIB "$DISK_GIB" 0 1000
[[ "$USD_PER_HOUR" =~ ^[0-9]+(\.[0-9]+)?$ ]] || die "USD_PER_HOUR=$USD_PER_HOUR: it is a price, such as 1.42"

TF_VAR_nightly=false
[[ "$NIGHTLY" == no ]] || TF_VAR_nightly=true
export TF_VAR_nightly TF_VAR_uploads="$UPLOADS" TF_VAR_schedule="$SCHEDULE" TF_VAR_time_zone="$TIME_ZONE"
export TF_VAR_prefix_uploads="$PREFIX_UPLOADS" TF_VAR_prefix_nightly="$PREFIX_NIGHTLY" TF_VAR_tasks="$TASKS"
export TF_VAR_max_tasks="$MAX_TASKS" TF_VAR_max_usd="$MAX_USD" TF_VAR_max_usd_per_day="$MAX_USD_PER_DAY"
export TF_VAR_budget_usd="$BUDGET_USD"
export TF_VAR_batch_window="$BATCH_WINDOW" TF_VAR_parallelism="$PARALLELISM" TF_VAR_max_retries="$MAX_RETRIES" TF_VAR_task_timeout="$TASK_TIMEOUT"
export TF_VAR_memory_gib="$MEMORY_GIB" TF_VAR_disk_gib="$DISK_GIB" TF_VAR_usd_per_hour="$USD_PER_HOUR"
export TF_VAR_bucket_in="$BUCKET_IN" TF_VAR_bucket_out="$BUCKET_OUT" TF_VAR_bucket_kernels="$BUCKET_KERNELS"
SAMPLE_IMAGE=us-docker.pkg.dev/cloudrun/container/job:latest # of Google's

# billing: find the billing account of the project, which a budget belongs to.
billing() {
    export TF_VAR_billing_account=""
    [[ "$BUDGET_USD" != 0 ]] || return 0
    ask gcloud billing projects describe "$PROJECT" --format='value(billingAccountName)' || die "project $PROJECT has no billing account"
    TF_VAR_billing_account="${ANSWER##*/}"
}

main() {
    say "voxbatch in project $PROJECT, region $REGION: uploads by $UPLOADS, nightly $NIGHTLY, alerts $ALERTS"
    receiver "failed runs, lost schedules and waiting uploads"
    foundation
    open_module jobs
    export TF_VAR_image="$SAMPLE_IMAGE"
    billing
    adopt jobs 'google_storage_bucket.bucket["in"]' "$BUCKET_IN"
    adopt jobs 'google_storage_bucket.bucket["out"]' "$BUCKET_OUT"
    adopt jobs 'google_storage_bucket.bucket["kernels"]' "$BUCKET_KERNELS"
    if [[ "$BUILD" == yes ]]; then
        if [[ "$DRY_RUN" == no ]] && ! output jobs job; then
            say "  first with a sample image of Google's: a quota that is missing shows here, not after the build"
            apply jobs -target='google_cloud_run_v2_job.gpu["voxbatch"]'
        fi
        build_image
    else
        image
        find_weights
    fi
    export TF_VAR_image="$IMAGE" TF_VAR_model="$MODEL"
    apply jobs
    remember settings
    [[ "$VERIFY" == no ]] || verify_deployment
    [[ "$BUILD" == no ]] || scan_image
    say "By hand: gcloud run jobs execute voxbatch --region=$REGION --tasks=8 \\"
    say "           --args=run,gs://$BUCKET_IN/day.jsonl,-o,$OUT/day"
}

main
