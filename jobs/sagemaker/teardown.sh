#!/usr/bin/env bash
# Remove what deploy.sh created: the stack, the images, and empty buckets. Buckets that hold something stay, unless
# --with-data is given, and so does each bucket whose name is a setting: it may be yours. --dry-run only shows it. A second
# run finds nothing more to remove.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
option "--dry-run (show what would be removed) and --with-data (also buckets that hold something)" "$@"
recall "$NAME"
check_settings

repository() {
    if ! found RepositoryNotFoundException ecr describe-repositories --repository-names "$NAME"; then
        say absent "repository $NAME"
    elif has_stack "$NAME-endpoint"; then
        say kept "repository $NAME: the endpoint uses it"
    else
        remove "repository $NAME and its images" ecr delete-repository --repository-name "$NAME" --force
    fi
}

bucket() { # bucket NAME USUAL_NAME
    local objects
    if ! has_bucket "$1"; then
        say absent "bucket $1"
        return
    fi
    if [[ $1 != "$2" ]]; then
        say kept "bucket $1: a setting named it; aws s3 rb --force s3://$1 deletes it with all that is in it"
        return
    fi
    objects=$(call s3api list-objects-v2 --bucket "$1" --max-keys 1 --query 'Contents[].Key')
    if [[ $objects != *\"* ]]; then
        remove "bucket $1" s3api delete-bucket --bucket "$1"
    elif [[ $WITH_DATA == no ]]; then
        say kept "bucket $1: there is something in it; --with-data deletes it, too"
    else
        remove "all that is in bucket $1" s3 rm --recursive --only-show-errors "s3://$1"
        remove "bucket $1" s3api delete-bucket --bucket "$1"
    fi
}

remove_stack "$NAME"
repository
bucket "$IN_BUCKET" "$(usual_bucket in)"
bucket "$OUT_BUCKET" "$(usual_bucket out)"
if has_stack "$NAME-endpoint"; then
    say kept "bucket $MODELS_BUCKET: the endpoint uses it"
else
    bucket "$MODELS_BUCKET" "$(usual_bucket models)"
fi
