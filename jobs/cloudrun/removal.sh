# shellcheck shell=bash disable=SC2034,SC2153
# The steps that the teardown.sh of the jobs and the teardown.sh of the service share. Source this file after settings.sh.
# (SC2034, SC2153: the settings are those of settings.sh, whose DRY_RUN is set here.)

WITH_DATA=no

# arguments "$@": read the options of a teardown.sh, which has a function usage.
arguments() {
    local argument
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
}

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

# shared ACCOUNT WHO: remove what the jobs and the service share, unless the other one, which has this account, exists.
shared() {
    if ask gcloud iam service-accounts describe "$1"; then
        same "channel, token, repository, weights and the account of builds stay: $2 use them"
        return
    fi
    channels
    gone "secret $TOKEN" secrets "$TOKEN"
    gone "repository voxbatch" "artifacts repositories" voxbatch --location="$REGION"
    revoke "serviceAccount:$BUILD_SA" roles/storage.objectUser "storage buckets" "gs://$BUCKET_MODELS"
    revoke "serviceAccount:$BUILD_SA" roles/logging.logWriter projects "$PROJECT"
    gone "service account voxbatch-build" "iam service-accounts" "$BUILD_SA"
    bucket "$BUCKET_MODELS"
}

# removed: print how many removals were made.
removed() {
    if ((CHANGES == 0)); then say "Nothing to remove."; else say "$CHANGES removals."; fi
}
