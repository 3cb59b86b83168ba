#!/usr/bin/env bash
# Set up `voxbatch serve` as a Cloud Run service, or update it. Terraform makes everything (../terraform/service), so that a
# second run changes nothing. It needs nothing of ../deploy.sh; if both are used, they share the image, the weights and the
# mail address.
set -euo pipefail

usage() {
    cat <<'END'
usage: [NAME=VALUE …] jobs/cloudrun/service/deploy.sh [--dry-run] [--defaults]

Makes, in one project and region: the service "voxbatch-serve" (vLLM's OpenAI server, one L4 an instance, none without
requests), its service account, which may only read the weights, and alerts. Where ../deploy.sh has not made them: an
Artifact Registry repository and a bucket for weights. Only named members may call the service.

  setting        what it is                                                                     if it is not given
  PROJECT        the project                                                                    gcloud's own
  REGION         a region of Cloud Run that has L4s                                             europe-west1
  INVOKERS       who may call it: user:ADDRESS,group:ADDRESS,serviceAccount:ADDRESS; all others lose the role
                                                                                 those who may; at first: you
  PROFILE        a profile of voxbatch                                                          ctx512
  ENGINE_OPTIONS options of the engine: NAME=VALUE NAME=VALUE
                            of ctx512: max_model_len=8192 gpu_memory_utilization=0.9; of others: none
  CONCURRENCY    requests at a time of an instance, in Cloud Run and in vLLM (max_num_seqs)     8
  RATE_LIMIT     requests of one address in a period, such as 60/minute; more are answered 429   no limit
  MAX_INSTANCES  each takes one L4 of the quota                                                 1
  START_DELAY    seconds until the first look at a start, 0 to 240; a start may take 420 in all  0
  INGRESS        from where: all, internal, or internal-and-cloud-load-balancing                all
  BUILD          yes or no: build IMAGE and fetch the weights, by Cloud Build; it takes an hour  no
  BASE_IMAGE, SCAN  of a build, as in ../deploy.sh                                               the Dockerfile's, no
  IMAGE          the container, the same as for jobs  REGION-docker.pkg.dev/PROJECT/voxbatch/voxbatch:latest
  BUCKET_MODELS  weights                                                                        PROJECT-voxbatch-models
  BUCKET_STATE   Terraform's state                                                              PROJECT-voxbatch-state
  MODEL          a model of the hub, an address or a folder     the weights in BUCKET_MODELS, or else the image's own
  WEIGHTS        where a build puts them: bucket (BUCKET_MODELS), image or none                 bucket
  MODEL_REVISION the branch, tag or commit of the hub that a build takes                        main
  HF_TOKEN       the hub token, put into Secret Manager                                         the one that is there
  ALERTS         yes or no                                                                      yes
  ALERT_EMAIL    whom they tell: an address                             the one that is there; asked for on a terminal
  CHANNEL        another notification channel: projects/…/notificationChannels/…                made for ALERT_EMAIL
  RETRY_S        seconds until what Google does not know yet is tried again, for ten minutes    10

The settings of the last run are the defaults of the next one: BUCKET_STATE remembers all but BUILD, HF_TOKEN and INVOKERS,
which the service itself has. To change one, give only it.

  --dry-run      show what would be changed
  --defaults     take no notice of the settings of the last run
  --help         this

Remove it all with teardown.sh.
END
}

# shellcheck source-path=SCRIPTDIR source=../settings.sh
source "$(dirname "${BASH_SOURCE[0]}")/../settings.sh"
# shellcheck source-path=SCRIPTDIR source=../terraform.sh
source "$HERE/terraform.sh"
# shellcheck source-path=SCRIPTDIR source=../build.sh
source "$HERE/build.sh"

option "$@"
OWN_SETTINGS=service-settings
REMEMBERED="REGION BUCKET_MODELS PROFILE CONCURRENCY MAX_INSTANCES START_DELAY INGRESS WEIGHTS ALERTS ALERT_EMAIL SCAN"
REMEMBERED_IF_GIVEN="ENGINE_OPTIONS RATE_LIMIT IMAGE BASE_IMAGE MODEL MODEL_REVISION CHANNEL" # of the profile, or found anew
settings
settings_of_deployment
PROFILE="${PROFILE:-ctx512}"
# 8 sessions of ten minutes fill an L4, by voxbatch.vllm.engine.memory.
DEFAULT_OPTIONS=""
[[ "$PROFILE" != ctx512 ]] || DEFAULT_OPTIONS="max_model_len=8192 gpu_memory_utilization=0.9"
ENGINE_OPTIONS="${ENGINE_OPTIONS:-$DEFAULT_OPTIONS}"
CONCURRENCY="${CONCURRENCY:-8}"
MAX_INSTANCES="${MAX_INSTANCES:-1}"
START_DELAY="${START_DELAY:-0}"
INGRESS="${INGRESS:-all}"
RATE_LIMIT="${RATE_LIMIT:-}"
INVOKERS="${INVOKERS:-}"

[[ -e "$HERE/../../voxbatch/profiles/$PROFILE.yaml" ]] || die "PROFILE=$PROFILE: see voxbatch profiles"
number CONCURRENCY "$CONCURRENCY" 1 1000
number MAX_INSTANCES "$MAX_INSTANCES" 1 100
number START_DELAY "$START_DELAY" 0 240
[[ "$RATE_LIMIT" =~ ^([1-9][0-9]*/(second|minute|hour|day))?$ ]] || die "RATE_LIMIT=$RATE_LIMIT: it is N/PERIOD, such as 60/minute"
one_of INGRESS "$INGRESS" all internal internal-and-cloud-load-balancing
[[ "$ENGINE_OPTIONS" =~ ^[A-Za-z0-9_=.\ :/-]*$ ]] ||
    die "ENGINE_OPTIONS=$ENGINE_OPTIONS: it is NAME=VALUE NAME=VALUE, such as max_model_len=8192"
[[ " $ENGINE_OPTIONS" != *" max_num_seqs="* ]] || die "ENGINE_OPTIONS=$ENGINE_OPTIONS: max_num_seqs is CONCURRENCY: set that"
MEMBER='^(user|group|serviceAccount|domain|principal|principalSet):[^,[:space:]]+$'
for each in ${INVOKERS//,/ }; do
    [[ "$each" != allUsers && "$each" != allAuthenticatedUsers ]] ||
        die "INVOKERS: $each would let every caller use your GPU at your cost. Name members. To open the service all the same:
    gcloud run services add-iam-policy-binding voxbatch-serve --region=$REGION --member=$each --role=roles/run.invoker
    and limit requests first: docs/serving.md, Limit requests"
    [[ "$each" =~ $MEMBER ]] || die "INVOKERS: $each is no member: it is user:ADDRESS, group:ADDRESS or serviceAccount:ADDRESS"
done

# invokers: without INVOKERS, those who may call the service still may; if nobody may, it is who deploys.
invokers() {
    local each list=""
    if [[ -z "$INVOKERS" ]]; then
        ask gcloud run services get-iam-policy voxbatch-serve --region="$REGION" --flatten='bindings[].members' \
            --format='value(bindings.role,bindings.members)' || true
        INVOKERS="$(sed -n $'s/^roles\\/run.invoker\t//p' <<<"$ANSWER" | paste -s -d , -)"
        [[ -z "$INVOKERS" ]] || same "callers: $INVOKERS"
    fi
    if [[ -z "$INVOKERS" ]]; then
        ask gcloud config get account || true
        case "$ANSWER" in
            *.gserviceaccount.com) INVOKERS="serviceAccount:$ANSWER" ;;
            *) INVOKERS="user:$ANSWER" ;;
        esac
    fi
    for each in ${INVOKERS//,/ }; do list="$list${list:+, }\"$each\""; done
    export TF_VAR_invokers="[$list]"
}

main() {
    say "voxbatch-serve in project $PROJECT, region $REGION: profile $PROFILE, up to $MAX_INSTANCES L4, alerts $ALERTS"
    receiver "failed requests, slow answers and idle GPUs"
    foundation
    if [[ "$BUILD" == yes ]]; then
        build_image
    else
        image
        find_weights
    fi
    case "$MODEL" in
        "gs://$BUCKET_MODELS/"*) ;;
        gs://*) say "! voxbatch-serve@$PROJECT.iam.gserviceaccount.com needs roles/storage.objectViewer on the bucket of $MODEL" ;;
    esac
    invokers
    case "$INGRESS" in
        all) TF_VAR_ingress=INGRESS_TRAFFIC_ALL ;;
        internal) TF_VAR_ingress=INGRESS_TRAFFIC_INTERNAL_ONLY ;;
        *) TF_VAR_ingress=INGRESS_TRAFFIC_INTERNAL_LOAD_BALANCER ;;
    esac
    export TF_VAR_ingress TF_VAR_image="$IMAGE" TF_VAR_model="$MODEL" TF_VAR_profile="$PROFILE"
    export TF_VAR_engine_options="$ENGINE_OPTIONS" TF_VAR_concurrency="$CONCURRENCY"
    export TF_VAR_max_instances="$MAX_INSTANCES" TF_VAR_start_delay="$START_DELAY" TF_VAR_rate_limit="$RATE_LIMIT"
    open_module service
    apply service
    remember "$OWN_SETTINGS"
    [[ "$BUILD" == no ]] || scan_image
    if [[ "$DRY_RUN" == yes ]] || ! output service url; then return 0; fi
    say "Try it:  curl -H \"Authorization: Bearer \$(gcloud auth print-identity-token)\" $ANSWER/v1/models"
    say "Or, for programs and browsers:  gcloud run services proxy voxbatch-serve --region=$REGION --port=8000"
    say "Only the members with roles/run.invoker may call it. INVOKERS=… names others; docs/serving.md has public access."
}

main
