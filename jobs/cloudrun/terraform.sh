# shellcheck shell=bash disable=SC2034,SC2153,SC2154
# The way a module of terraform/ is applied and destroyed. Source this file after settings.sh.
# (SC2034, SC2153, SC2154: the settings and the helper functions are those of settings.sh.)
#
# Terraform's state is in BUCKET_STATE, below voxbatch/: one for each of foundation, jobs and service.

# terraform_in MODULE COMMAND…: run Terraform as the person who is logged in to gcloud. The variables of Google's provider
# say that this project pays for its requests.
terraform_in() {
    local folder="$HERE/terraform/$1"
    [[ ! -d "$WORK/$1" ]] || folder="$WORK/$1"
    GOOGLE_OAUTH_ACCESS_TOKEN="$(gcloud auth print-access-token)" GOOGLE_BILLING_PROJECT="$PROJECT" \
        USER_PROJECT_OVERRIDE=true TF_IN_AUTOMATION=1 terraform -chdir="$folder" "${@:2}"
}

# state: make the bucket of the state, and enable the APIs that Terraform itself needs.
state() {
    local name missing=()
    ask gcloud services list --enabled --format='value(config.name)' || true
    for name in cloudresourcemanager iam serviceusage storage; do
        grep -qxF "$name.googleapis.com" <<<"$ANSWER" || missing+=("$name.googleapis.com")
    done
    ((${#missing[@]} == 0)) || change "enable ${missing[*]}" gcloud services enable "${missing[@]}"
    if ! state_exists; then
        change "make bucket $BUCKET_STATE, for Terraform's state" gcloud storage buckets create "gs://$BUCKET_STATE" \
            --location="$REGION" --uniform-bucket-level-access --public-access-prevention
        change "keep old versions of the state" gcloud storage buckets update "gs://$BUCKET_STATE" --versioning
    fi
}

state_exists() { ask gcloud storage buckets describe "gs://$BUCKET_STATE" --format='value(name)'; }

# open_module MODULE: connect a module to its state. A dry run before the first deployment has no state: it plans in a copy.
open_module() {
    if [[ "$DRY_RUN" == yes ]] && ! state_exists; then
        cp -R "$HERE/terraform/$1" "$WORK/$1"
        printf 'terraform {\n  backend "local" {}\n}\n' >"$WORK/$1/backend_override.tf"
        terraform_in "$1" init -input=false >/dev/null
    else
        terraform_in "$1" init -input=false -reconfigure -backend-config="bucket=$BUCKET_STATE" \
            -backend-config="prefix=voxbatch/$1" >/dev/null
    fi
}

# apply MODULE [ARGUMENT…]: show the plan of an open module, and apply it, until Google knows everywhere what was made
# before.
apply() {
    local module="$1" attempts="$ATTEMPTS"
    shift
    say "+ apply the module $module"
    if [[ "$DRY_RUN" == yes ]]; then
        terraform_in "$module" plan -input=false "$@"
        return
    fi
    while true; do
        if terraform_in "$module" plan -input=false -out="$WORK/plan" "$@" 2>&1 | tee "$WORK/said"; then
            confirm_losses "$module"
            if terraform_in "$module" apply -input=false "$WORK/plan" 2>&1 | tee "$WORK/said"; then return; fi
        fi
        again_or_die "apply the module $module" "$(<"$WORK/said")"
    done
}

# What holds messages, recordings, transcripts, weights, images or the token.
HOLDS='google_(pubsub_topic|pubsub_subscription|storage_bucket|artifact_registry_repository|secret_manager_secret)\.'

# confirm_losses MODULE: stop if the plan deletes or replaces something that holds messages or data, unless a person says
# yes, or REPLACE=yes.
confirm_losses() {
    local losses answer=""
    losses="$(terraform_in "$1" show -no-color "$WORK/plan" | grep -E "^ *# .*$HOLDS.*(must be replaced|will be destroyed)" || true)"
    [[ -n "$losses" && "${REPLACE:-no}" != yes ]] || return 0
    say "! This deletes messages or data that are in:"
    say "$losses"
    if [[ -t 0 ]]; then read -r -p "Delete them? Type yes: " answer || true; fi
    [[ "$answer" == yes ]] ||
        die "nothing of the module $1 was changed. Leave out the setting that causes it (a folder, a bucket), or handle what is in
    there first and set REPLACE=yes"
}

# output MODULE NAME: put an output of an open module into $ANSWER; return false if nothing was applied.
output() { ANSWER="$(terraform_in "$1" output -raw "$2" 2>/dev/null)"; }

# has_state MODULE: open a module, and return true if it has made something that is still there.
has_state() {
    open_module "$1"
    [[ -n "$(terraform_in "$1" state list 2>/dev/null)" ]]
}

# adopt MODULE ADDRESS BUCKET: let an open module take over a bucket that exists already, such as one of yours, or one that
# teardown.sh has left.
adopt() {
    ask gcloud storage buckets describe "gs://$3" --format='value(location.lower())' || return 0
    # Eventarc's trigger must be in the region of the bucket, and weights from another region take longer and cost.
    [[ "$ANSWER" == "$REGION" ]] ||
        die "bucket $3 lies in $ANSWER, not in $REGION: choose that REGION, or another bucket"
    [[ "$DRY_RUN" == no ]] || return 0
    [[ -n "$(terraform_in "$1" state list "$2" 2>/dev/null)" ]] ||
        change "take over bucket $3" terraform_in "$1" import -input=false "$2" "$3"
}

# foundation: apply what the jobs and the service share.
foundation() {
    state
    open_module foundation
    TF_VAR_scan=false
    [[ "$SCAN" == no ]] || TF_VAR_scan=true
    TF_VAR_hub_token=false
    if [[ -n "$HUB_TOKEN" ]] || ask gcloud secrets describe "$TOKEN" --format='value(name)'; then TF_VAR_hub_token=true; fi
    TF_VAR_alert_email="$ALERT_EMAIL"
    TF_VAR_alerts=false
    [[ "$ALERTS" == no ]] || TF_VAR_alerts=true
    export TF_VAR_scan TF_VAR_hub_token TF_VAR_alert_email TF_VAR_alerts
    adopt foundation google_storage_bucket.models "$BUCKET_MODELS"
    apply foundation
    if [[ -z "$CHANNEL" && "$DRY_RUN" == no ]] && output foundation channel; then CHANNEL="$ANSWER"; fi
    export TF_VAR_channel="${CHANNEL:-projects/$PROJECT/notificationChannels/new}"
    token
}

# receiver FAULTS: find the address of an earlier deployment, if neither it nor CHANNEL is given. Without one, ask for it;
# and refuse to deploy alerts that nobody would read.
receiver() {
    if [[ -z "$ALERT_EMAIL" ]] && state_exists; then
        open_module foundation
        if output foundation alert_email; then ALERT_EMAIL="$ANSWER"; fi
    fi
    [[ "$ALERTS" == yes && -z "$CHANNEL" ]] || return 0
    if [[ -z "$ALERT_EMAIL" && -t 0 ]]; then
        read -r -p "E-mail address for alerts of $1: " ALERT_EMAIL || true
        email
    fi
    [[ -n "$ALERT_EMAIL" ]] ||
        die "whom should alerts tell? Set ALERT_EMAIL=you@example.org, or CHANNEL=projects/…/notificationChannels/…, or
    ALERTS=no: then nobody hears of $1. Nothing was changed."
}

# token: put the hub token into its secret. It is read only from HF_TOKEN, and passed only through standard input.
token() {
    [[ -n "$HUB_TOKEN" ]] || return 0
    if ask gcloud secrets versions access latest --secret="$TOKEN" && [[ "$ANSWER" == "$HUB_TOKEN" ]]; then
        same "the token in $TOKEN"
    else
        STDIN="$HUB_TOKEN"
        change "put the token into $TOKEN" gcloud secrets versions add "$TOKEN" --data-file=-
        STDIN=""
    fi
    ANSWER=""
}

# ── removal ───────────────────────────────────────────────────────────────────────────────────────────────────────────

WITH_DATA=no

# arguments "$@": read the options of a teardown.sh, which has a function usage.
arguments() {
    local argument
    for argument in "$@"; do
        case "$argument" in
            --with-data) WITH_DATA=yes ;;
            *) option "$argument" ;;
        esac
    done
}

# destroy MODULE: destroy an open module.
destroy() {
    local attempts="$ATTEMPTS"
    say "+ destroy the module $1"
    if [[ "$DRY_RUN" == yes ]]; then
        terraform_in "$1" plan -destroy -input=false
        return
    fi
    until terraform_in "$1" destroy -input=false -auto-approve 2>&1 | tee "$WORK/said"; do
        again_or_die "destroy the module $1" "$(<"$WORK/said")"
    done
}

# keep_or_empty MODULE ADDRESS BUCKET: a bucket with something in it stays, and Terraform forgets it; with --with-data, it is
# emptied.
keep_or_empty() {
    ask gcloud storage ls "gs://$3" && [[ -n "$ANSWER" ]] || return 0
    if [[ "$WITH_DATA" == no ]]; then
        same "bucket $3 stays: there is something in it; --with-data deletes it, too"
        change "leave bucket $3 out of what is destroyed" terraform_in "$1" state rm "$2"
    else
        change "delete what is in bucket $3" gcloud storage rm --recursive "gs://$3/**"
    fi
}

# destroy_shared OTHER WHO: destroy the foundation and its state, unless the other module, jobs or service, has something.
destroy_shared() {
    if has_state "$1"; then
        same "channel, token, repository, weights and the account of builds stay: $2 use them"
        return
    fi
    if has_state foundation; then
        keep_or_empty foundation google_storage_bucket.models "$BUCKET_MODELS"
        destroy foundation
    fi
    change "delete bucket $BUCKET_STATE" gcloud storage rm --recursive "gs://$BUCKET_STATE"
}
