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

# terraform_is_recent: stop before any change if Terraform is older than terraform/*/versions.tf allow: 1.5, that of Cloud
# Shell. The last line of the message installs a newer one for this account, without root.
terraform_is_recent() {
    local version
    version="$(terraform version)"
    [[ "$version" =~ v([0-9]+)\.([0-9]+) ]] || die "terraform version says nothing: $version"
    ((BASH_REMATCH[1] * 1000 + BASH_REMATCH[2] >= 1005)) ||
        die "terraform is ${version%%$'\n'*}, and 1.5 or newer is needed. Nothing was changed. Install one in \$HOME/bin:
    mkdir -p ~/bin && curl -fsSL https://releases.hashicorp.com/terraform/1.11.4/terraform_1.11.4_linux_amd64.zip -o ~/bin/terraform.zip && unzip -oq ~/bin/terraform.zip terraform -d ~/bin && rm ~/bin/terraform.zip && export PATH=~/bin:\$PATH"
}

# no_mistyped_setting: stop at an exported name that is nearly that of a setting, which the function usage names.
no_mistyped_setting() {
    local mistyped
    mistyped="$(compgen -e | awk -v known="$(usage | grep -oE '[A-Z][A-Z_]+' | paste -s -d ' ' -)" -f "$HERE/../near_names.awk")"
    [[ -z "$mistyped" ]] || die "$mistyped"
}

# settings: the settings of every script.
settings() {
    command -v gcloud >/dev/null || die "gcloud is not installed: see https://cloud.google.com/sdk/docs/install"
    command -v terraform >/dev/null ||
        die "terraform is not installed. Cloud Shell has it; elsewhere see https://developer.hashicorp.com/terraform/install"
    terraform_is_recent
    no_mistyped_setting
    PROJECT="${PROJECT:-$(gcloud config get project 2>/dev/null || true)}"
    [[ -n "$PROJECT" ]] || die "which project? Set PROJECT, or: gcloud config set project NAME"
    export CLOUDSDK_CORE_PROJECT="$PROJECT" CLOUDSDK_CORE_DISABLE_PROMPTS=1
    # The token is passed to gcloud through standard input only: no other program inherits it.
    HUB_TOKEN="${HF_TOKEN:-}"
    unset HF_TOKEN

    BUCKET_STATE="${BUCKET_STATE:-$PROJECT-voxbatch-state}"
    WORK="$(mktemp -d)"
    trap 'rm -rf "$WORK"' EXIT
    [[ -z "$OWN_SETTINGS" ]] || recall "$OWN_SETTINGS" "$REMEMBERED $REMEMBERED_IF_GIVEN"
    recall settings "$RECALLED"
    REGION="${REGION:-europe-west1}"
    BUCKET_IN="${BUCKET_IN:-$PROJECT-voxbatch-in}"
    BUCKET_OUT="${BUCKET_OUT:-$PROJECT-voxbatch-out}"
    BUCKET_MODELS="${BUCKET_MODELS:-$PROJECT-voxbatch-models}"
    BUCKET_KERNELS="${BUCKET_KERNELS:-$PROJECT-voxbatch-kernels}"
    RETRY_S="${RETRY_S:-10}" # seconds until a command that is not possible yet is retried
    number RETRY_S "$RETRY_S" 0 600
    ATTEMPTS=$((RETRY_S == 0 ? 60 : PATIENCE_S / RETRY_S + 1))

    BUILD_SA="voxbatch-build@$PROJECT.iam.gserviceaccount.com"
    TOKEN=voxbatch-hf-token
    OUT="gs://$BUCKET_OUT/out"
    export TF_VAR_project="$PROJECT" TF_VAR_region="$REGION" TF_VAR_bucket_models="$BUCKET_MODELS"
}

# settings_of_deployment: the settings of both deploy.sh.
settings_of_deployment() {
    IMAGE="${IMAGE:-$REGION-docker.pkg.dev/$PROJECT/voxbatch/voxbatch:latest}"
    MODEL="${MODEL:-}"
    CHANNEL="${CHANNEL:-}"
    ALERTS="${ALERTS:-yes}"
    one_of ALERTS "$ALERTS" yes no
    BUILD="${BUILD:-no}"
    one_of BUILD "$BUILD" yes no
    SCAN="${SCAN:-no}"
    one_of SCAN "$SCAN" yes no
    WEIGHTS="${WEIGHTS:-bucket}"
    one_of WEIGHTS "$WEIGHTS" bucket image none
    ALERT_EMAIL="${ALERT_EMAIL:-}"
    [[ -z "$CHANNEL" || "$CHANNEL" =~ ^projects/[^/]+/notificationChannels/[^/]+$ ]] ||
        die "CHANNEL=$CHANNEL: it is projects/…/notificationChannels/…, see: gcloud beta monitoring channels list"
    email
}

email() {
    [[ -z "$ALERT_EMAIL" || "$ALERT_EMAIL" =~ ^[^@,=[:space:]]+@[^@,=[:space:]]+$ ]] ||
        die "ALERT_EMAIL=$ALERT_EMAIL: it is an address, such as ops@example.org"
}

# The settings of the jobs that live with the deployment, in an object of BUCKET_STATE: those of the last deploy.sh are the
# defaults of the next one.
REMEMBERED="REGION BUCKET_IN BUCKET_OUT BUCKET_MODELS BUCKET_KERNELS UPLOADS NIGHTLY PREFIX_UPLOADS PREFIX_NIGHTLY SCHEDULE
TIME_ZONE TASKS PARALLELISM MAX_TASKS MAX_USD MAX_USD_PER_DAY BUDGET_USD BATCH_WINDOW MAX_RETRIES TASK_TIMEOUT MEMORY_GIB DISK_GIB WEIGHTS
ALERTS ALERT_EMAIL SCAN"
REMEMBERED_IF_GIVEN="IMAGE BASE_IMAGE MODEL MODEL_REVISION USD_PER_HOUR CHANNEL" # without them, each run finds them anew
RECALLED="REGION BUCKET_IN BUCKET_OUT BUCKET_MODELS BUCKET_KERNELS" # what the service and teardown.sh need; deploy.sh recalls all
OWN_SETTINGS="" # the object that a script has besides
DEFAULTS=no

# recall OBJECT NAMES: give each of these settings that is not given its value of the last deployment, which is in an object
# of BUCKET_STATE.
recall() {
    local name value changed="" given=""
    if [[ "$DEFAULTS" == no ]] && ask gcloud storage cat "gs://$BUCKET_STATE/voxbatch/$1"; then
        while IFS='=' read -r name value; do
            [[ " ${2//$'\n'/ } " == *" $name "* && -n "$value" ]] || continue
            [[ "$name" != IMAGE || "${BUILD:-no}" == no ]] || continue # a build makes another one
            if [[ -z "${!name:-}" ]]; then
                printf -v "$name" '%s' "$value"
            elif [[ "${!name}" != "$value" ]]; then
                changed+="${changed:+, }$name=${!name} (was $value)"
            fi
        done <<<"$ANSWER"
        same "settings of the last deployment${changed:+, except $changed}"
    fi
    for name in $REMEMBERED_IF_GIVEN; do
        [[ -z "${!name:-}" ]] || given+="$name=${!name}"$'\n'
    done
    GIVEN="$given"
}

# remember OBJECT: write the settings of this deployment to an object of BUCKET_STATE.
remember() {
    local name object="gs://$BUCKET_STATE/voxbatch/$1"
    for name in $REMEMBERED; do printf '%s=%s\n' "$name" "${!name:-}"; done >"$WORK/settings"
    printf '%s' "$GIVEN" >>"$WORK/settings"
    if ask gcloud storage cat "$object" && [[ "$ANSWER" == "$(<"$WORK/settings")" ]]; then
        return
    fi
    change "remember the settings for the next deployment" \
        gcloud storage cp "$WORK/settings" "$object"
}

# option "$@": read the options of a deploy.sh, which has a function usage.
option() {
    local argument
    for argument in "$@"; do
        case "$argument" in
            --help | -h)
                usage
                exit 0
                ;;
            --dry-run) DRY_RUN=yes ;;
            --defaults) DEFAULTS=yes ;;
            *) die "unknown argument $argument; see --help" ;;
        esac
    done
}

# ── gcloud ────────────────────────────────────────────────────────────────────────────────────────────────────────────

DRY_RUN=no
STDIN=""
ABSENT='NOT_FOUND|not found|[Cc]annot find|does not exist|matched no objects'
DISABLED='SERVICE_DISABLED|it is disabled' # in this case nothing can exist
DENIED='PERMISSION_DENIED|[Pp]ermission .*denied|does not have .* access|HTTPError 403|googleapi: Error 403'
NO_BILLING="[Bb]illing must be enabled|[Bb]illing account .*(not found|not open|is disabled)|requires billing to be enabled"
NO_GPU='quota for using GPUs|NvidiaL4GpuAlloc|allowable count of GPUs'
NO_QUOTA='(MemAlloc|CpuAlloc)PerProjectRegion requested: *([0-9]+) *allowed: *([0-9]+)'
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

# change WHAT COMMAND…: print it, run it, and stop if it fails. $STDIN is the command's input.
change() {
    local what="$1" said attempts="$ATTEMPTS"
    shift
    say "+ $what"
    [[ "$DRY_RUN" == no ]] || return 0
    while true; do
        if said="$(printf '%s' "$STDIN" | "$@" 2>&1 >/dev/null)"; then return 0; fi
        again_or_die "$what" "$said"
    done
}

# again_or_die WHAT ERROR: wait if the error passes by itself, and count down $attempts of the caller; else explain it and
# stop.
again_or_die() {
    if [[ "$2" =~ $SOON && ! "$2" =~ $NO_BILLING|$NO_QUOTA|$NO_GPU ]] && ((--attempts > 0)); then
        say "  … not yet: $(grep -m 1 -E "$SOON" <<<"$2" || true)"
        sleep "$RETRY_S"
        return
    fi
    say "$2" >&2
    explain "$2" >&2
    die "could not $1; what was done before it stays, and running this again goes on from there"
}

same() { say "= $1"; }

# explain ERROR: print what to do, if Google's error is one that a person can set right.
explain() {
    local said="$1" console="https://console.cloud.google.com" it unit=1000 what="vCPU"
    if [[ "$said" =~ $NO_BILLING ]]; then
        say "There is no billing: project $PROJECT has no open billing account. Link one:
    $console/billing/linkedaccount?project=$PROJECT"
    elif [[ "$said" =~ $NO_GPU ]]; then
        say "There is no GPU quota: project $PROJECT may not use NVIDIA L4s in $REGION, or not as many. Ask for 1 or more of
    NvidiaL4GpuAllocNoZonalRedundancyPerProjectRegion (Cloud Run Admin API, region $REGION):
    $console/iam-admin/quotas?project=$PROJECT
    Or set REGION to a region in which the project has L4s."
    elif [[ "$said" =~ $NO_QUOTA ]]; then
        if [[ "${BASH_REMATCH[1]}" == MemAlloc ]]; then unit=1073741824 what="GiB of memory"; fi
        say "A quota is too small: in $REGION, project $PROJECT may use $((BASH_REMATCH[3] / unit)) $what in Cloud Run at a time,
    and this needs $((BASH_REMATCH[2] / unit)). A new project has 40 GiB and 20 vCPU a region, whatever its quota of GPUs is.
    Ask for more of ${BASH_REMATCH[1]}PerProjectRegion (Cloud Run Admin API, region $REGION):
    $console/iam-admin/quotas?project=$PROJECT
    Or let fewer tasks run at a time (PARALLELISM), or give each less memory (MEMORY_GIB)."
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
