# shellcheck shell=bash disable=SC2153,SC2154
# Build the image with Cloud Build, and find the weights that a build put into the models bucket. deploy.sh sources this
# file after settings.sh.
# (SC2153, SC2154: the settings and the helper functions are those of settings.sh and deploy.sh.)

DEFAULT_MODEL=mistralai/Voxtral-Mini-4B-Realtime-2602 # as in voxbatch.vllm.engine.model

# Set $WEIGHTS_OF to the name of the hub's model whose weights a build brings. It is empty if MODEL is a folder or an
# address, which needs no weights of ours.
weights_of() {
    case "$MODEL" in
        "") WEIGHTS_OF="$DEFAULT_MODEL" ;;
        *://* | /*) WEIGHTS_OF="" ;;
        */*) WEIGHTS_OF="$MODEL" ;;
        *) die "MODEL=$MODEL: it is a model of the hub (OWNER/NAME), an address (gs://…) or a folder of the image (/…)" ;;
    esac
}

# find_weights: set MODEL to the folder gs://BUCKET_MODELS/OWNER/NAME/COMMIT/ that the last build of this model filled.
# MODEL stays if no build did. With the weights in the image, it becomes empty: the image knows its model.
find_weights() {
    weights_of
    [[ -n "$WEIGHTS_OF" ]] || return 0
    case "$WEIGHTS" in
        none) return 0 ;;
        image)
            MODEL=""
            return 0
            ;;
    esac
    if ask gcloud storage cat "gs://$BUCKET_MODELS/$WEIGHTS_OF/current"; then
        MODEL="$ANSWER"
        same "weights in $MODEL"
    fi
}

# image: give IMAGE the digest that its tag stands for today. A tag may name another image tomorrow.
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

# build_image: build IMAGE from this checkout, as the account of the module foundation. Afterwards IMAGE has the digest of
# what was built, and MODEL the folder of the weights.
build_image() {
    local name tag=latest id token="" weights="$WEIGHTS"
    [[ "$IMAGE" == *-docker.pkg.dev/*/*/* && "$IMAGE" != *@* ]] ||
        die "BUILD=yes IMAGE=$IMAGE: a build makes a tag in Artifact Registry: leave IMAGE out, or set BUILD=no"
    name="${IMAGE##*/}"
    [[ "$name" != *:* ]] || tag="${name#*:}"
    name="${IMAGE%/*}/${name%%:*}"
    weights_of
    [[ -n "$WEIGHTS_OF" ]] || weights=none
    cp "$HERE/../../cloudbuild.yaml" "$WORK/cloudbuild.yaml"
    if [[ "$TF_VAR_hub_token" == true ]]; then
        # Cloud Build does not start if a secret is missing, so the lines that read it are comments until it is there.
        sed 's/^\( *\)# \(.*\)  # token$/\1\2/' "$HERE/../../cloudbuild.yaml" >"$WORK/cloudbuild.yaml"
        token=", with the hub token"
    fi

    # A new account and its roles take minutes until Cloud Build knows them.
    local SOON="$SOON|could not resolve source|permission to act as"
    change "build $name:$tag$token (30 to 60 minutes)" submit_build
    [[ "$DRY_RUN" == no ]] || return 0
    id="$(<"$WORK/build")"
    say "  log: https://console.cloud.google.com/cloud-build/builds;region=$REGION/$id?project=$PROJECT"
    say "  The build goes on if this is interrupted. When it has ended: VERIFY=yes and the same settings without BUILD"
    wait_for_build "$id"
    ask gcloud artifacts docker images describe "$name:$tag" --format='value(image_summary.digest)' ||
        die "build $id has succeeded, and $name:$tag is not there: look at its log"
    IMAGE="$name@$ANSWER"
    say "  image: $IMAGE"
    find_weights
}

# Submit the build that build_image describes in its variables, and put its id into $WORK/build.
submit_build() {
    local commit
    commit="$(git -C "$HERE" rev-parse HEAD 2>/dev/null || true)"
    gcloud builds submit "$HERE/../.." --async --format='value(id)' --region="$REGION" \
        --config="$WORK/cloudbuild.yaml" --service-account="projects/$PROJECT/serviceAccounts/$BUILD_SA" \
        --gcs-source-staging-dir="gs://$BUCKET_MODELS/source" --substitutions="_IMAGE=$name,_TAG=$tag,_COMMIT=$commit,\
_BASE_IMAGE=${BASE_IMAGE:-},_WEIGHTS=$weights,_MODEL=$WEIGHTS_OF,_MODEL_REVISION=${MODEL_REVISION:-main},\
_BUCKET_MODELS=$BUCKET_MODELS" >"$WORK/build"
}

# watch COMMAND…: put the state of something that takes long into $ANSWER. A network that fails for a minute must not end
# an hour of waiting.
watch() {
    local attempt
    for attempt in 1 2 3 4 5 6; do
        if ANSWER="$("$@" 2>"$WORK/errors")"; then return 0; fi
        ((attempt == 6)) || sleep "$RETRY_S"
    done
    say "$(<"$WORK/errors")" >&2
    die "could not look: $*"
}

# wait_for_build ID: show each step that begins, until the build has ended.
wait_for_build() {
    local state step progress last=""
    while true; do
        watch gcloud builds describe "$1" --region="$REGION" --flatten='steps[]' \
            --format='value[separator=" "](status,steps.status,steps.id)'
        read -r state _ <<<"$ANSWER"
        progress="$(sed -n 's/^[A-Z_]* WORKING //p' <<<"$ANSWER" | paste -s -d ' ' -)"
        case "$state" in
            SUCCESS) return ;;
            QUEUED | PENDING | WORKING) ;;
            *) break ;;
        esac
        if [[ -n "$progress" && "$progress" != "$last" ]]; then say "  … $progress"; fi
        last="$progress"
        sleep "$RETRY_S"
    done
    step="$(sed -n -e 's/^[A-Z_]* FAILURE //p' -e 's/^[A-Z_]* TIMEOUT //p' <<<"$ANSWER" | paste -s -d ' ' -)"
    ask gcloud logging read "resource.type=\"build\" AND resource.labels.build_id=\"$1\"" --limit=30 --order=desc \
        --format='value(textPayload)' || true
    printf '%s\n' "$ANSWER" | awk '{ line[NR] = $0 } END { while (NR) print "    " line[NR--] }' >&2
    die "the build ended with $state${step:+ in step $step}: the end of its log is above. All of it:
    gcloud logging read 'resource.labels.build_id=\"$1\"' --project=$PROJECT --order=asc --format='value(textPayload)'
    Nothing was deployed. The next run starts a new build."
}

# scan_image: print how many vulnerabilities are known in IMAGE, and export its list of packages (SBOM). Both come from
# Google's scan of what was pushed, which takes a few minutes.
scan_image() {
    local attempt found="" finding
    [[ "$SCAN" == yes && "$DRY_RUN" == no && "$IMAGE" == *@* ]] || return 0
    for attempt in 1 2 3 4 5 6; do
        if found="$(gcloud artifacts sbom export --uri="$IMAGE" 2>&1)"; then
            say "  SBOM: gcloud artifacts sbom list --resource=$IMAGE"
            break
        fi
        ((attempt < 6)) || say "! no SBOM yet (${found##*$'\n'}); later: gcloud artifacts sbom export --uri=$IMAGE"
        sleep "$RETRY_S"
    done
    if finding="$(gcloud artifacts vulnerabilities list "$IMAGE" --format='value(vulnerability.effectiveSeverity)' 2>/dev/null)"; then
        found="$(sed '/^$/d' <<<"$finding" | sort | uniq -c | awk '{ printf "%s%d %s", sep, $1, tolower($2); sep = ", " }')"
        say "  vulnerabilities: ${found:-none known}; gcloud artifacts vulnerabilities list $IMAGE"
    else
        say "! no result of the scan yet; later: gcloud artifacts vulnerabilities list $IMAGE"
    fi
}
