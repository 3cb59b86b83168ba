# The part that the scripts of the jobs and of the endpoint share: settings, names, calls of `aws` that stop at an
# unexpected error, and stacks of CloudFormation. Source this file; do not run it.
# shellcheck shell=bash

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

usage() { # print the comment at the head of the script, and the settings with their comments
    local script file files=("$here/settings.sh")
    script=$(cd "$(dirname "$0")" && pwd)/${0##*/}
    printf 'usage: [NAME=VALUE …] jobs/sagemaker/%s [OPTION …]\n\n' "${script#"$here"/}"
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$script"
    [[ $script != */endpoint/* ]] || files=("$here/endpoint/settings.sh" "${files[@]}")
    for file in "${files[@]}"; do
        echo
        sed -n -e '/^# shellcheck/d' -e 's/^# //p' -e 's/^: "${\([A-Z_]*\):=\(.*\)}" *#/\1=\2  #/p' -e '/^$/p' "$file"
    done
}
for word in "$@"; do
    [[ $word != --help && $word != -h ]] || { usage && exit; }
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export AWS_PAGER="" AWS_DEFAULT_OUTPUT=json

stop() {
    printf 'jobs/sagemaker: %s\n' "$*" >&2
    exit 1
}

say() { # say STATE WHAT; the state is plan, changed, kept, gone, absent, running, warning or ready
    printf '%-8s %s\n' "$1" "$2"
}

refused() { # stop with the message of the last command and a hint
    local said
    said=$(tr -s '[:space:]' ' ' <"$work/errors")
    case $said in
    *AccessDenied* | *UnauthorizedOperation* | *"(403)"* | *"not authorized"*)
        stop "no permission for aws $1 $2:$said(docs/sagemaker.md lists the permissions that deploying needs)" ;;
    esac
    stop "aws $1 $2 failed:${said:- it said nothing}"
}

call() {
    aws "$@" 2>"$work/errors" || refused "$@"
}

answer= # output of the last `found`
found() { # found CODE aws-arguments…: put the output into $answer; return 1 if AWS says CODE; stop at any other error
    local absent=$1
    shift
    # shellcheck disable=SC2034 # the caller reads it
    answer=$(aws "$@" 2>"$work/errors") && return 0
    grep -qE "\(($absent)\)" "$work/errors" && return 1
    refused "$@"
}

command -v aws >/dev/null || stop "aws is not on PATH: install the AWS CLI, version 2 or 1.36 and newer"
command -v python3 >/dev/null || stop "python3 is not on PATH"

given=" $(compgen -v | tr '\n' ' ')" # what the caller has set, which is taken before what the stack remembers
# shellcheck source=settings.sh
. "$here/settings.sh"

REGION=${AWS_REGION:-${AWS_DEFAULT_REGION:-$(aws configure get region || true)}}
[[ -n $REGION ]] || stop "no region: set AWS_REGION"
export AWS_REGION=$REGION AWS_DEFAULT_REGION=$REGION
ACCOUNT=$(call sts get-caller-identity --query Account --output text)

has_bucket() {
    found '404|NoSuchBucket|NotFound' s3api head-bucket --bucket "$1"
}

has_stack() {
    found ValidationError cloudformation describe-stacks --stack-name "$1"
}

parameter() { # parameter STACK NAME: put a parameter of the last deployment into $answer; return 1 if there was none
    found ValidationError cloudformation describe-stacks --stack-name "$1" --output text \
        --query "Stacks[0].Parameters[?ParameterKey=='$2'].ParameterValue"
}

DEFAULTS=no DRY_RUN=no WITH_DATA=no
# shellcheck disable=SC2034 # the scripts that read this file use it
DEPLOY_OPTIONS="--dry-run (show what would change) and --defaults (forget the settings of the last run)"
# shellcheck disable=SC2034 # the same of WITH_DATA
option() { # option SENTENCE "$@": read the options of a script, which the sentence names, and stop at a mistyped setting
    local takes=$1 word mistyped
    for word in "${@:2}"; do
        [[ $word == --* && " $takes " == *" $word "* ]] || stop "${0##*/} takes $takes; it was given: $word"
        case $word in
        --dry-run) DRY_RUN=yes ;;
        --defaults) DEFAULTS=yes ;;
        --with-data) WITH_DATA=yes ;;
        esac
    done
    mistyped=$(compgen -e | awk -v known="$(settings_of "$here/settings.sh" "$here/endpoint/settings.sh")" -f "$here/../near_names.awk")
    [[ -z $mistyped ]] || stop "$mistyped"
}

# shellcheck disable=SC2034 # the scripts of the endpoint read it
SHARED=(IN_BUCKET OUT_BUCKET MODELS_BUCKET KMS_KEY TAGS) # settings of the jobs that their endpoint takes, too
NOT_REMEMBERED=" NAME BUILD VERIFY REPLACE ALERT_EMAIL " # the address is a parameter of its own: see whom_to_tell
settings_of() { # settings_of FILE…: print the names of the settings of these files
    sed -n 's/^: "${\([A-Z_]*\):=.*/\1/p' "$@" | sort -u | tr '\n' ' '
}

names_in() { # names_in FILE…: print the settings of these files that a stack remembers, and the exported options of voxbatch
    local name
    for name in $(settings_of "$@") $(compgen -A export VOXBATCH_); do
        [[ $NOT_REMEMBERED == *" $name "* ]] || printf '%s ' "$name"
    done
}

recall() { # recall STACK [NAME…]: take these settings, or all, from the last deployment of a stack, if the caller did not set them
    local name value changed=""
    [[ $DEFAULTS == no ]] && parameter "$1" Settings && [[ -n $answer ]] || return 0
    while IFS='=' read -r name value; do
        [[ $name =~ ^[A-Z][A-Z0-9_]*$ && ($# == 1 || " ${*:2} " == *" $name "*) ]] || continue
        [[ $name != IMAGE_TAG || $BUILD != yes ]] || continue # a build makes another image
        if [[ $given != *" $name "* ]]; then
            printf -v "$name" %s "$value"
            [[ $name != VOXBATCH_* ]] || export "${name?}"
            given+="$name "
        elif [[ ${!name} != "$value" ]]; then
            changed+="${changed:+, }$name=${!name} (was $value)"
        fi
    done <<<"$answer"
    say kept "settings of stack $1${changed:+, except $changed}"
}

remember() { # remember NAME…: put those of the settings that were set, now or before, into $memory, a parameter of a stack
    local name
    memory=Settings=
    for name in "$@"; do
        [[ $given != *" $name "* || -z ${!name} ]] || memory+=$name=${!name}$'\n'
    done
}

usual_bucket() { # usual_bucket in|out|models: print the name of a bucket that no setting names
    echo "$NAME-$1-$ACCOUNT-$REGION"
}

check_settings() { # fill in the names of the buckets, and stop if a setting of both deploy.sh is wrong
    local type
    IN_BUCKET=${IN_BUCKET:-$(usual_bucket in)}
    OUT_BUCKET=${OUT_BUCKET:-$(usual_bucket out)}
    MODELS_BUCKET=${MODELS_BUCKET:-$(usual_bucket models)}
    for type in $INSTANCE_TYPE $NIGHTLY_TYPE ${FALLBACK_TYPES//,/ }; do # AWS refuses the job: these disks encrypt themselves
        [[ -z $VOLUME_KMS_KEY || ! $type =~ ^ml\.(g[4-9]|p3dn|p[4-9]) ]] ||
            stop "VOLUME_KMS_KEY: an $type has disks of its own, which the machine encrypts, and takes no key: leave it empty"
    done
    [[ $TAGS =~ ^([^=,]+=[^=,]*(,[^=,]+=[^=,]*)*)?$ ]] || stop "TAGS is '$TAGS'; it must be NAME=VALUE,NAME=VALUE"
    [[ $ALERTS == yes || $ALERTS == no ]] || stop "ALERTS is '$ALERTS'; it must be yes or no"
    [[ $REPLACE == yes || $REPLACE == no ]] || stop "REPLACE is '$REPLACE'; it must be yes or no"
}

whom_to_tell() { # whom_to_tell STACK: set ALERT_EMAIL to "no", or to the address of the last deployment if none is given
    if [[ $ALERTS == no ]]; then
        ALERT_EMAIL=no
        return
    fi
    [[ -z $ALERT_EMAIL ]] || return 0
    if parameter "$1" AlertEmail; then ALERT_EMAIL=$answer; fi
    if [[ $ALERT_EMAIL != *@* && -t 0 ]]; then read -r -p "mail address for alerts about failures (empty: stop): " ALERT_EMAIL; fi
    [[ $ALERT_EMAIL == *@* ]] || stop "nobody would be told of failures: set ALERT_EMAIL to a mail address, or ALERTS=no"
}

quota() { # quota NAME COUNT: put it into $allowed; return 1, with a warning, if it is too small
    local value code
    allowed="" # if it cannot be read, which is no obstacle
    read -r value code < <(aws service-quotas list-service-quotas --service-code sagemaker --output text \
        --query "Quotas[?QuotaName=='$1'].[Value, QuotaCode]" 2>/dev/null | grep .) || return 0
    allowed=${value%.*}
    ((allowed < $2)) || return 0
    say warning "the quota '$1' is $allowed in $REGION: nothing starts before AWS raises it to $2, which can take days:"
    say "" "aws service-quotas request-service-quota-increase --service-code sagemaker --quota-code $code --desired-value $2"
    return 1
}

deploy_stack() { # deploy_stack STACK TEMPLATE NAME=VALUE…: show the changes of a stack, and make them; other parameters stay
    local name=$1 template=$2 kind=create said plan tags
    shift 2
    if found ValidationError cloudformation describe-stacks --stack-name "$name" --query 'Stacks[0].StackStatus' \
        --output text; then
        case $answer in
        ROLLBACK_COMPLETE) # what is left of a first attempt cannot be changed
            remove_stack "$name"
            [[ $DRY_RUN == no ]] || return 0
            ;;
        REVIEW_IN_PROGRESS) ;;
        *) kind=update ;;
        esac
    fi
    IFS=, read -ra tags <<<"$TAGS"
    said=$(call cloudformation deploy --stack-name "$name" --template-file "$here/$template" --no-execute-changeset \
        --capabilities CAPABILITY_NAMED_IAM --no-fail-on-empty-changeset --parameter-overrides "$@" \
        ${tags[@]+--tags "${tags[@]}"})
    if [[ $said == *"No changes to deploy"* ]]; then
        say kept "stack $name"
        return
    fi
    plan=$(grep -om 1 'arn:[^ ]*:changeSet/[^ ]*' <<<"$said") || stop "aws cloudformation deploy names no change set: $said"
    call cloudformation describe-change-set --change-set-name "$plan" --output text \
        --query 'Changes[].ResourceChange.[Action, Replacement, ResourceType, LogicalResourceId]' >"$work/plan"
    say plan "stack $name, by resource: what is done with it, and whether it is replaced"
    sed 's/^/         /' "$work/plan"
    if [[ $DRY_RUN == yes ]]; then
        forget_plan "$name" "$plan" "$kind"
        return
    fi
    confirm_losses || {
        forget_plan "$name" "$plan" "$kind"
        stop "stack $name was not changed. Leave out the setting that causes this, or look after what is in there and set REPLACE=yes"
    }
    call cloudformation execute-change-set --change-set-name "$plan"
    if ! aws cloudformation wait "stack-$kind-complete" --stack-name "$name" 2>"$work/errors"; then
        call cloudformation describe-stack-events --stack-name "$name" --output text \
            --query "StackEvents[?ends_with(ResourceStatus, '_FAILED')].[LogicalResourceId, ResourceStatusReason]" >&2
        stop "stack $name was not changed, for the reasons above: the last line is the first one"
    fi
    say changed "stack $name"
}

forget_plan() { # forget_plan STACK PLAN create|update: delete a change set, and the empty stack that comes with a first one
    call cloudformation delete-change-set --change-set-name "$2"
    [[ $3 == update ]] || call cloudformation delete-stack --stack-name "$1"
}

confirm_losses() { # return 1 if the plan takes something with messages or data from the stack, and nobody says yes
    local losses holds='(S3::Bucket|SQS::Queue|ECR::Repository)' reply=$REPLACE
    losses=$(grep -E $'^(Remove\t|Modify\t(True|Conditional)\t).*AWS::'"$holds"$'\t' "$work/plan") || return 0
    say warning "messages in what is removed or replaced are lost; buckets and images stay, but runs do not use them any more:"
    printf '         %s\n' "${losses//$'\n'/$'\n'         }"
    if [[ $reply == no && -t 0 ]]; then read -r -p "Go on? Type yes: " reply || true; fi
    [[ $reply == yes ]]
}

remove() { # remove WHAT aws-arguments…: remove something, or say so in a dry run
    if [[ $DRY_RUN == yes ]]; then
        say plan "remove $1"
        return
    fi
    call "${@:2}" >/dev/null
    say gone "$1"
}

remove_stack() {
    if ! has_stack "$1"; then
        say absent "stack $1"
        return
    fi
    [[ $DRY_RUN == yes ]] || call cloudformation delete-stack --stack-name "$1"
    remove "stack $1" cloudformation wait stack-delete-complete --stack-name "$1"
}

has_image() { # put the digest and the form of the image into $answer
    local id="[{\"imageTag\": \"$IMAGE_TAG\"}]"
    [[ $IMAGE_TAG != sha256:* ]] || id="[{\"imageDigest\": \"$IMAGE_TAG\"}]"
    found 'ImageNotFoundException|RepositoryNotFoundException' ecr describe-images --repository-name "$NAME" \
        --image-ids "$id" --query 'imageDetails[0].[imageDigest, imageManifestMediaType]' --output text
}

image() { # set DIGEST, so that a push alone changes no run
    local form
    has_image || stop "there is no image $NAME:$IMAGE_TAG: run jobs/sagemaker/deploy.sh with BUILD=yes"
    read -r DIGEST form <<<"$answer"
    say kept "image $NAME@$DIGEST"
    [[ $form != *index* && $form != *list* ]] ||
        say warning "the image is a list of images ($form), which parts of SageMaker refuse: build with --provenance=false"
}

has_weights() { # has_weights BUCKET PREFIX
    local names
    names=$(call s3api list-objects-v2 --bucket "$1" --prefix "$2" --query 'Contents[].Key') || exit
    [[ $names == *.safetensors* ]]
}

build() { # build STEP NAME=VALUE…: upload the source, run CodeBuild, and wait
    local variables="" variable id state=IN_PROGRESS
    for variable in "STEP=$1" "${@:2}"; do
        variables+="{\"name\": \"${variable%%=*}\", \"value\": \"${variable#*=}\"},"
    done
    (cd "$here/../.." && python3 -m zipfile -c "$work/source.zip" Dockerfile .dockerignore LICENSE README.md \
        pyproject.toml requirements.lock requirements-build.lock requirements-clouds.lock voxbatch jobs)
    call s3 cp --only-show-errors "$work/source.zip" "s3://$MODELS_BUCKET/source.zip"
    id=$(call codebuild start-build --project-name "$NAME" --environment-variables-override "[${variables%,}]" \
        --query build.id --output text)
    say running "build $id; its log: aws logs tail /aws/codebuild/$NAME --follow"
    while [[ $state == IN_PROGRESS ]]; do
        sleep "${POLL_SECONDS:-30}"
        state=$(call codebuild batch-get-builds --ids "$id" --query 'builds[0].buildStatus' --output text)
    done
    [[ $state == SUCCEEDED ]] || stop "build $id ended as $state: the reason is in aws logs tail /aws/codebuild/$NAME --since 3h"
}
