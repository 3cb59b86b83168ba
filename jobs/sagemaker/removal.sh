# The steps that the teardown.sh of the pipeline and the teardown.sh of the endpoint share. Source this file after
# common.sh. `$1` of repository and `$2` of bucket are --all, or empty.
# shellcheck shell=bash

repository() {
    if ! found RepositoryNotFoundException ecr describe-repositories --repository-names "$NAME"; then
        say absent "repository $NAME"
    elif [[ $1 == --all ]]; then
        call ecr delete-repository --repository-name "$NAME" --force >/dev/null
        say gone "repository $NAME and its images"
    else
        say kept "repository $NAME (--all deletes it)"
    fi
}

bucket() {
    if ! found '404|NoSuchBucket|NotFound' s3api head-bucket --bucket "$1"; then
        say absent "bucket $1"
    elif [[ $2 != --all ]]; then
        say kept "bucket $1 (--all deletes it if it is empty)"
    elif found BucketNotEmpty s3api delete-bucket --bucket "$1"; then
        say gone "bucket $1"
    else
        say kept "bucket $1: it is not empty; aws s3 rb --force s3://$1 deletes all that is in it"
    fi
}
