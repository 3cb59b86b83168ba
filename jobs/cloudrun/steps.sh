# shellcheck shell=bash disable=SC2034,SC2153
# The steps that the deploy.sh of the jobs and the deploy.sh of the service share. Source this file after settings.sh.
# (SC2034, SC2153: the settings are those of settings.sh and deploy.sh, which use the variables that are set here.)

# Settings of the image, the weights and the alerts.
settings_of_deployment() {
    IMAGE="${IMAGE:-$REGION-docker.pkg.dev/$PROJECT/voxbatch/voxbatch:latest}"
    MODEL="${MODEL:-}"
    CHANNEL="${CHANNEL:-}"
    BUILD="${BUILD:-no}"
    one_of BUILD "$BUILD" yes no
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

# render FILE: put its text with ${NAME} filled in for each NAME of $VALUES into $RENDERED. A line that ends in "# if NAME"
# stays only if NAME, one of $CHOICES, is set.
render() {
    local name
    RENDERED="$WORK/$(basename "$1")"
    {
        for name in $CHOICES; do
            if [[ -n "${!name}" ]]; then printf 's/  # if %s$//\n' "$name"; else printf '/  # if %s$/d\n' "$name"; fi
        done
        for name in $VALUES; do
            printf '%s=%s\n' "$name" "${!name}"
        done | sed -e 's/[\\&|]/\\&/g' -e 's/^\([A-Z_]*\)=\(.*\)$/s|${\1}|\2|g/'
    } >"$WORK/fill"
    sed -f "$WORK/fill" "$HERE/$1" >"$WORK/text"
    FINGERPRINT="$(fingerprint <"$WORK/text")"
    sed "s|\${FINGERPRINT}|$FINGERPRINT|g" "$WORK/text" >"$RENDERED"
}

# apis NAME…: enable these APIs of Google.
apis() {
    local name missing=()
    ask gcloud services list --enabled --format='value(config.name)' || true
    for name in "$@"; do
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
    # Eventarc's trigger must be in the region of the bucket, and weights from another region take longer and cost.
    [[ "${ANSWER%% *}" == "$REGION" ]] ||
        die "bucket $name lies in ${ANSWER%% *}, not in $REGION: choose that REGION, or another bucket"
    if [[ "$closed" == "True enforced" ]]; then
        same "bucket $name"
    else
        change "close bucket $name to the public" gcloud storage buckets update "gs://$name" \
            --uniform-bucket-level-access --public-access-prevention
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

# A tag may name another image tomorrow, so jobs and the service get the digest that the tag stands for today.
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

# put KIND NAME FILE: create a job or a service from a file; replace it if its text differs from that of the last time.
put() {
    render "$3"
    if ask gcloud run "$1s" describe "$2" --region="$REGION" --format='value(metadata.labels.voxbatch-config)' &&
        [[ "$ANSWER" == "$FINGERPRINT" ]]; then
        same "$1 $2"
    else
        change "put $1 $2" gcloud run "$1s" replace "$RENDERED" --region="$REGION"
    fi
}

# find_channel FAULTS: find the notification channel of an earlier deployment, if CHANNEL is not given. Without one, ask
# for an address; and refuse to deploy alerts that nobody would read.
find_channel() {
    local name address
    [[ "$ALERTS" == yes && -z "$CHANNEL" ]] || return 0
    ask gcloud beta monitoring channels list --filter='displayName="voxbatch"' \
        --format='value(name,labels.email_address)' || true
    while IFS=$'\t' read -r name address; do
        if [[ -z "$ALERT_EMAIL" || "$address" == "$ALERT_EMAIL" ]]; then CHANNEL="$name" ADDRESS="$address"; fi
    done <<<"$ANSWER"
    if [[ -z "$CHANNEL$ALERT_EMAIL" && -t 0 ]]; then
        read -r -p "E-mail address for alerts of $1: " ALERT_EMAIL || true
        email
    fi
    [[ -n "$CHANNEL$ALERT_EMAIL" ]] ||
        die "whom should alerts tell? Set ALERT_EMAIL=you@example.org, or CHANNEL=projects/…/notificationChannels/…, or
    ALERTS=no: then nobody hears of $1. Nothing was changed."
}

channel() {
    if [[ -n "$CHANNEL" ]]; then
        same "notification channel ${ADDRESS:-$CHANNEL}"
        return
    fi
    change "make notification channel $ALERT_EMAIL" gcloud beta monitoring channels create --display-name=voxbatch \
        --type=email --channel-labels="email_address=$ALERT_EMAIL"
    [[ "$DRY_RUN" == yes ]] || find_channel ""
}

# policy FOLDER NAME: make or change the alert policy of a file.
policy() {
    render "$1/$2.yaml"
    ask gcloud alpha monitoring policies list --filter="displayName=\"voxbatch: ${2//-/ }\"" \
        --format='value(name,userLabels.voxbatch_config)' || true
    if [[ -z "$ANSWER" ]]; then
        change "make alert policy ${2//-/ }" gcloud alpha monitoring policies create --policy-from-file="$RENDERED"
    elif [[ "${ANSWER##*$'\t'}" == "config-$FINGERPRINT" ]]; then
        same "alert policy ${2//-/ }"
    else
        change "set alert policy ${2//-/ } right" gcloud alpha monitoring policies update "${ANSWER%%$'\t'*}" \
            --policy-from-file="$RENDERED"
    fi
}

# summary: print how many changes were made.
summary() {
    if ((CHANGES == 0)); then
        say "Nothing to change."
    elif [[ "$DRY_RUN" == yes ]]; then
        say "$CHANGES changes would be made."
    else
        say "$CHANGES changes made."
    fi
}
