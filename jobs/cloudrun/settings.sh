# shellcheck shell=bash disable=SC2034
# The part that all deploy.sh and teardown.sh share: the settings, the names, and the way a command of gcloud is run.
# Source this file; do not run it. Bash 3.2 is enough, so that it also runs on a Mac.
# (SC2034: shellcheck does not see that the other scripts use these variables.)

HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
PROGRAM="$(basename "$0")"

die() {
    printf '%s: %s\n' "$PROGRAM" "$*" >&2
    exit 1
}

say() { printf '%s\n' "$*"; }

# ── settings ──────────────────────────────────────────────────────────────────────────────────────────────────────────

one_of() { # NAME VALUE ALLOWED…
    local name="$1" value="$2" allowed
    shift 2
    for allowed in "$@"; do [[ "$value" == "$allowed" ]] && return; done
    die "$name=$value: it is one of: $*"
}

number() { # NAME VALUE LEAST MOST
    if [[ ! "$2" =~ ^[0-9]{1,9}$ ]] || (($2 < $3 || $2 > $4)); then die "$1=$2: it is a number from $3 to $4"; fi
}

settings() {
    command -v gcloud >/dev/null || die "gcloud is not installed: see https://cloud.google.com/sdk/docs/install"
    PROJECT="${PROJECT:-$(gcloud config get project 2>/dev/null || true)}"
    [[ -n "$PROJECT" ]] || die "which project? Set PROJECT, or: gcloud config set project NAME"
    export CLOUDSDK_CORE_PROJECT="$PROJECT" CLOUDSDK_CORE_DISABLE_PROMPTS=1
    # The token is passed to gcloud through standard input only: no other program inherits it.
    HUB_TOKEN="${HF_TOKEN:-}"
    unset HF_TOKEN

    REGION="${REGION:-europe-west1}"
    BUCKET_IN="${BUCKET_IN:-$PROJECT-voxbatch-in}"
    BUCKET_OUT="${BUCKET_OUT:-$PROJECT-voxbatch-out}"
    BUCKET_MODELS="${BUCKET_MODELS:-$PROJECT-voxbatch-models}"
    UPLOADS="${UPLOADS:-workflow}"
    one_of UPLOADS "$UPLOADS" workflow worker none
    NIGHTLY="${NIGHTLY:-yes}"
    one_of NIGHTLY "$NIGHTLY" yes no
    ALERTS="${ALERTS:-yes}"
    one_of ALERTS "$ALERTS" yes no
    RETRY_S="${RETRY_S:-10}" # seconds until a command that is not possible yet is retried
    number RETRY_S "$RETRY_S" 0 600
    ATTEMPTS=$((RETRY_S == 0 ? 60 : PATIENCE_S / RETRY_S + 1))
    WORK="$(mktemp -d)"
    trap 'rm -rf "$WORK"' EXIT

    RUN_SA="voxbatch-run@$PROJECT.iam.gserviceaccount.com"
    DISPATCH_SA="voxbatch-dispatch@$PROJECT.iam.gserviceaccount.com"
    START_SA="voxbatch-start@$PROJECT.iam.gserviceaccount.com"
    LISTEN_SA="voxbatch-listen@$PROJECT.iam.gserviceaccount.com"
    BUILD_SA="voxbatch-build@$PROJECT.iam.gserviceaccount.com"
    SERVE_SA="voxbatch-serve@$PROJECT.iam.gserviceaccount.com"
    RUN="serviceAccount:$RUN_SA"
    DISPATCH="serviceAccount:$DISPATCH_SA"
    START="serviceAccount:$START_SA"
    LISTEN="serviceAccount:$LISTEN_SA"
    SERVE="serviceAccount:$SERVE_SA"
    SERVICE=voxbatch-serve
    TOKEN=voxbatch-hf-token
    OUT="gs://$BUCKET_OUT/out"
    TOPIC="projects/$PROJECT/topics/voxbatch-uploads"
    DEAD_TOPIC="projects/$PROJECT/topics/voxbatch-dead"
    UPLOADS_SUBSCRIPTION="projects/$PROJECT/subscriptions/voxbatch-uploads"
    NIGHTLY_SUBSCRIPTION="projects/$PROJECT/subscriptions/voxbatch-nightly"
    # Workflows, Eventarc and Logging have no smaller scope than the project.
    START_PROJECT_ROLES="roles/workflows.invoker roles/eventarc.eventReceiver roles/logging.logWriter"
    METRICS="failed-items starved-seconds" POLICIES="failed-items gpu-idle dead-letters failed-workflows"
    POLICIES="$POLICIES failed-schedules waiting-uploads"
    SERVICE_POLICIES="service-errors service-latency service-gpu-idle"
}

# ── gcloud ────────────────────────────────────────────────────────────────────────────────────────────────────────────

CHANGES=0
DRY_RUN=no
STDIN=""
ABSENT='NOT_FOUND|not found|[Cc]annot find|does not exist|matched no objects'
DISABLED='SERVICE_DISABLED|it is disabled' # in this case nothing can exist
DENIED='PERMISSION_DENIED|[Pp]ermission .*denied|does not have .* access|HTTPError 403'
NO_BILLING="[Bb]illing must be enabled|[Bb]illing account .*(not found|not open|is disabled)|requires billing to be enabled"
NO_QUOTA='quota for using GPUs|NvidiaL4GpuAlloc|allowable count of GPUs'
# Errors that pass by themselves: names and roles need a while until all of Google Cloud knows them.
SOON="does not exist|[Ss]ervice [Aa]gent|unable to publish|denied on secret|Cannot find metric|concurrent policy"
SOON="$SOON|UNAVAILABLE|ABORTED|actAs' denied|$DISABLED"
PATIENCE_S=600 # the longest time in which Google makes a service agent, or lets everyone know a new account

# Run a command that changes nothing. Put its output into $ANSWER; return false if the requested object does not exist.
ask() {
    local said
    if ANSWER="$("$@" 2>"$WORK/errors")"; then return 0; fi
    said="$(<"$WORK/errors")"
    if [[ "$said" =~ $DISABLED ]] || [[ "$said" =~ $ABSENT && ! "$said" =~ $DENIED|$NO_BILLING ]]; then
        ANSWER=""
        return 1
    fi
    say "$said" >&2
    explain "$said" >&2
    die "could not look: $*"
}

# Run a command whose answer must be there as soon as Google knows that its API is enabled. Put the answer into $ANSWER.
need() {
    local attempts="$ATTEMPTS"
    until ask "$@"; do
        if [[ "$DRY_RUN" == yes ]] || ((--attempts == 0)); then die "no answer: $*"; fi
        say "  … not yet: $*"
        sleep "$RETRY_S"
    done
}

# change WHAT COMMAND…: print it, run it, and stop if it fails. $STDIN is the command's input.
change() {
    local what="$1" said attempts="$ATTEMPTS"
    shift
    CHANGES=$((CHANGES + 1))
    say "+ $what"
    [[ "$DRY_RUN" == no ]] || return 0
    while true; do
        if said="$(printf '%s' "$STDIN" | "$@" 2>&1 >/dev/null)"; then return 0; fi
        if [[ ! "$said" =~ $SOON || "$said" =~ $NO_BILLING ]] || ((--attempts == 0)); then break; fi
        say "  … not yet: ${said%%$'\n'*}"
        # The service agent of an API that somebody else enabled may never have been made.
        if [[ "$said" =~ gcp-sa-([a-z]+)\.iam ]]; then
            gcloud beta services identity create --service="${BASH_REMATCH[1]}.googleapis.com" >/dev/null 2>&1 || true
        fi
        sleep "$RETRY_S"
    done
    say "$said" >&2
    explain "$said" >&2
    die "could not $what; what was done before it stays, and running this again goes on from there"
}

same() { say "= $1"; }

# explain ERROR: print what to do, if gcloud's error is one that a person can set right.
explain() {
    local said="$1" console="https://console.cloud.google.com" it
    if [[ "$said" =~ $NO_BILLING ]]; then
        say "There is no billing: project $PROJECT has no open billing account. Link one:
    $console/billing/linkedaccount?project=$PROJECT"
    elif [[ "$said" =~ $NO_QUOTA ]]; then
        say "There is no GPU quota: project $PROJECT may not use NVIDIA L4s in $REGION, or not as many. Ask for 1 or more of
    NvidiaL4GpuAllocNoZonalRedundancyPerProjectRegion (Cloud Run Admin API, region $REGION):
    $console/iam-admin/quotas?project=$PROJECT
    Or set REGION to a region in which the project has L4s."
    elif [[ "$said" =~ $DISABLED ]]; then
        it=""
        if [[ "$said" =~ ([a-z]+)\.googleapis\.com ]]; then it="${BASH_REMATCH[1]}.googleapis.com"; fi
        say "An API is switched off${it:+: $it}. A service account needs it. Enable it, and wait some minutes:
    gcloud services enable ${it:-NAME.googleapis.com} --project=$PROJECT
    If this is refused, a policy of the organisation forbids the API: ask its administrator."
    elif [[ "$said" =~ [Ss]ervice\ [Aa]gent|gcp-sa- ]]; then
        say "An account of Google's own, a service agent, does not exist yet, or does not have its role yet. Google makes it
    at the first use of an API, which took longer than $((PATIENCE_S / 60)) minutes here. Run this again later."
    elif [[ "$said" =~ $DENIED ]]; then
        it="$(gcloud config get account 2>/dev/null || true)"
        say "A role is missing: ${it:-your account} needs the role Owner on project $PROJECT; or Editor with Project IAM Admin,
    Secret Manager Admin, Storage Admin, Pub/Sub Admin and Cloud Run Admin. Ask somebody who has Owner:
    $console/iam-admin/iam?project=$PROJECT
    Google also answers so if there is no project of this name: gcloud projects list"
    fi
}

# Print a checksum of a text. It is kept in a label or a description, to detect a difference.
fingerprint() { cksum | tr ' ' '-'; }

# Print the member of a binding in one word: our own accounts by name only.
who() {
    local account="${1#*:}"
    case "$account" in voxbatch-*) account="${account%%@*}" ;; esac
    printf '%s' "$account"
}

# bound MEMBER ROLE "COMMAND GROUP" RESOURCE FLAG…: return true if the member has this role on this resource.
bound() {
    local member="$1" role="$2" resource="$4" group
    read -ra group <<<"$3"
    shift 4
    ask gcloud "${group[@]}" get-iam-policy "$resource" "$@" --flatten='bindings[].members' \
        --format='value(bindings.role,bindings.members)' &&
        grep -qxF "$role"$'\t'"$member" <<<"$ANSWER"
}

# binding add|remove MEMBER ROLE "COMMAND GROUP" RESOURCE FLAG…
binding() {
    local verb="$1" member="$2" role="$3" resource="$5" group conditions=()
    read -ra group <<<"$4"
    shift 5
    # For policies that may have conditions, gcloud must be told that this binding has none.
    case "${group[0]}" in projects | secrets | storage) conditions=(--condition=None) ;; esac
    gcloud "${group[@]}" "$verb-iam-policy-binding" "$resource" "$@" --member="$member" --role="$role" \
        ${conditions[@]+"${conditions[@]}"}
}

# grant, revoke MEMBER ROLE "COMMAND GROUP" RESOURCE FLAG…: add or remove a role on one resource.
grant() {
    if bound "$@"; then
        same "$(who "$1") has $2 on $4"
    else
        change "grant $(who "$1") $2 on $4" binding add "$@"
    fi
}

revoke() {
    bound "$@" || return 0
    change "take $2 on $4 from $(who "$1")" binding remove "$@"
}

# ── roles ─────────────────────────────────────────────────────────────────────────────────────────────────────────────
# The first argument of each function is grant or revoke, the second one the member.

roles_on_recordings() {
    "$1" "$2" roles/storage.objectViewer "storage buckets" "gs://$BUCKET_IN"
    "$1" "$2" roles/storage.objectUser "storage buckets" "gs://$BUCKET_OUT"
}

# A transcriber runs ffmpeg on untrusted audio: it reads recordings and weights, writes outputs, and may do nothing else.
roles_of_transcriber() {
    roles_on_recordings "$1" "$2"
    "$1" "$2" roles/storage.objectViewer "storage buckets" "gs://$BUCKET_MODELS"
    if ask gcloud secrets describe "$TOKEN"; then
        "$1" "$2" roles/secretmanager.secretAccessor secrets "$TOKEN"
    fi
}

# A listener reads the messages of a subscription, and sends to the dead-letter topic what can never be run.
roles_of_listener() { # grant|revoke MEMBER SUBSCRIPTION
    "$1" "$2" roles/pubsub.subscriber "pubsub subscriptions" "$3"
    "$1" "$2" roles/pubsub.viewer "pubsub subscriptions" "$3"
    "$1" "$2" roles/pubsub.publisher "pubsub topics" "$DEAD_TOPIC"
}
