#!/usr/bin/env bash
# Remove what deploy.sh created, but not your data: buckets and images stay, and the script says so. With --all, the
# images are removed too, and so are empty buckets. A second run finds nothing more to remove.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[[ $# == 0 || "$*" == --all ]] || stop "teardown.sh takes nothing, or --all; it was given: $*"
recall "$NAME"
check_settings

repository() {
    if ! found RepositoryNotFoundException ecr describe-repositories --repository-names "$NAME"; then
        say absent "repository $NAME"
    elif [[ $1 != --all ]]; then
        say kept "repository $NAME (--all deletes it)"
    elif has_stack "$NAME-endpoint"; then
        say kept "repository $NAME: the endpoint uses it"
    else
        call ecr delete-repository --repository-name "$NAME" --force >/dev/null
        say gone "repository $NAME and its images"
    fi
}

bucket() {
    if ! has_bucket "$1"; then
        say absent "bucket $1"
    elif [[ $2 != --all ]]; then
        say kept "bucket $1 (--all deletes it if it is empty)"
    elif found BucketNotEmpty s3api delete-bucket --bucket "$1"; then
        say gone "bucket $1"
    else
        say kept "bucket $1: it is not empty; aws s3 rb --force s3://$1 deletes all that is in it"
    fi
}

remove_stack "$NAME"
repository "${1:-}"
for name in "$IN_BUCKET" "$OUT_BUCKET" "$MODELS_BUCKET"; do
    bucket "$name" "${1:-}"
done
