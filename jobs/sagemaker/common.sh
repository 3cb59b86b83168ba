# The part that deploy.sh and teardown.sh share: settings, names, and calls of `aws` that stop at an unexpected error.
# Source this file; do not run it.
# shellcheck shell=bash

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
errors=$(mktemp)
trap 'rm -f "$errors"' EXIT
export AWS_PAGER="" AWS_DEFAULT_OUTPUT=json

stop() {
    printf 'jobs/sagemaker: %s\n' "$*" >&2
    exit 1
}

say() { # say STATE WHAT; the state is made, changed, kept, gone or absent
    printf '%-8s %s\n' "$1" "$2"
}

refused() { # stop with the message of the last command and a hint
    local said
    said=$(tr -s '[:space:]' ' ' <"$errors")
    case $said in
    *AccessDenied* | *UnauthorizedOperation* | *"(403)"* | *"not authorized"*)
        stop "no permission for aws $1 $2:$said(docs/sagemaker.md lists the permissions that deploying needs)" ;;
    esac
    stop "aws $1 $2 failed:${said:- it said nothing}"
}

call() {
    aws "$@" 2>"$errors" || refused "$@"
}

answer= # output of the last `found`
found() { # found CODE aws-arguments…: put the output into $answer; return 1 if AWS says CODE; stop at any other error
    local absent=$1
    shift
    # shellcheck disable=SC2034 # the caller reads it
    answer=$(aws "$@" 2>"$errors") && return 0
    grep -qE "\(($absent)\)" "$errors" && return 1
    refused "$@"
}

render() { # print a file of this folder with the settings filled in, on one line, for comparison
    python3 "$here/render.py" "$here/$1"
}

canonical() { # print standard input in the same form
    python3 "$here/render.py" -
}

command -v aws >/dev/null || stop "aws is not on PATH: install the AWS CLI, version 2 or 1.36 and newer"
command -v python3 >/dev/null || stop "python3 is not on PATH"

# shellcheck source=settings.sh
. "$here/settings.sh"

REGION=${AWS_REGION:-${AWS_DEFAULT_REGION:-$(aws configure get region || true)}}
[[ -n $REGION ]] || stop "no region: set AWS_REGION"
export AWS_REGION=$REGION AWS_DEFAULT_REGION=$REGION

caller=$(call sts get-caller-identity)
ACCOUNT=$(python3 -c 'import json, sys; print(json.load(sys.stdin)["Account"])' <<<"$caller")
PARTITION=$(python3 -c 'import json, sys; print(json.load(sys.stdin)["Arn"].split(":")[1])' <<<"$caller")
domain=amazonaws.com
[[ $PARTITION != aws-cn ]] || domain=amazonaws.com.cn

IN_BUCKET=${IN_BUCKET:-$NAME-in-$ACCOUNT-$REGION}
OUT_BUCKET=${OUT_BUCKET:-$NAME-out-$ACCOUNT-$REGION}
NIGHTLY_TYPE=${NIGHTLY_TYPE:-$INSTANCE_TYPE} NIGHTLY_OUT=${NIGHTLY%/}
RUN_ROLE=$NAME-run CREATE_ROLE=$NAME-pipeline START_ROLE=$NAME-start
UPLOADS_RULE=$NAME-uploads NIGHTLY_RULE=$NAME-nightly DEAD_QUEUE=$NAME-dead DEAD_ALARM=$NAME-dead
ALERT_TOPIC=$NAME-alerts FAILED_RUNS_RULE=$NAME-failed-runs FAILED_JOBS_RULE=$NAME-failed-jobs
# shellcheck disable=SC2034 # deploy.sh uses it
REPOSITORY=$ACCOUNT.dkr.ecr.$REGION.$domain/$NAME
TOPIC_ARN=arn:$PARTITION:sns:$REGION:$ACCOUNT:$ALERT_TOPIC
export NAME REGION ACCOUNT PARTITION IN_BUCKET OUT_BUCKET RUN_ROLE CREATE_ROLE START_ROLE UPLOADS_RULE NIGHTLY_RULE
export DEAD_QUEUE DEAD_ALARM ALERT_TOPIC FAILED_RUNS_RULE FAILED_JOBS_RULE TAGS SUBNETS SECURITY_GROUPS KMS_KEY
export VOLUME_KMS_KEY HUB_TOKEN_SECRET UPLOADS NIGHTLY NIGHTLY_OUT NIGHTLY_TYPE INSTANCE_TYPE INSTANCE_COUNT DISK_GB

for setting in INSTANCE_COUNT DISK_GB MAX_HOURS; do
    [[ ${!setting} =~ ^[1-9][0-9]*$ ]] || stop "$setting is '${!setting}'; it must be a whole number from 1"
done
[[ $NAME =~ ^[a-z0-9]+(-[a-z0-9]+)*$ ]] || stop "NAME is '$NAME'; small letters, digits and single - are allowed"
[[ $IN_BUCKET != "$OUT_BUCKET" ]] ||
    stop "IN_BUCKET and OUT_BUCKET are both $IN_BUCKET: outputs are .jsonl too, and would start runs of their own"
[[ $UPLOADS == ?*/ && $UPLOADS != *'*'* ]] || stop "UPLOADS is '$UPLOADS'; it must end in / and hold no *"
[[ $NIGHTLY == ?*/ || $NIGHTLY == ?*.jsonl || $NIGHTLY == ?*.jsonl.gz ]] ||
    stop "NIGHTLY is '$NIGHTLY'; it must be a folder, with / at its end, or a manifest (.jsonl, .jsonl.gz)"
[[ -z $SCHEDULE || ($NIGHTLY != "$UPLOADS"* && $UPLOADS != "$NIGHTLY"*) ]] ||
    stop "NIGHTLY ($NIGHTLY) and UPLOADS ($UPLOADS) lie one in the other: what is uploaded would be run twice"
arn=arn:$PARTITION:
for setting in KMS_KEY VOLUME_KMS_KEY; do
    [[ -z ${!setting} || ${!setting} == "$arn"kms:?*:key/?* ]] || stop "$setting is '${!setting}'; it must be a key's ARN"
done
[[ -z $HUB_TOKEN_SECRET || $HUB_TOKEN_SECRET == "$arn"secretsmanager:?*:secret:?* ]] ||
    stop "HUB_TOKEN_SECRET is '$HUB_TOKEN_SECRET'; it must be a secret's ARN, and never the token itself"
[[ -n $SUBNETS && -n $SECURITY_GROUPS || -z $SUBNETS$SECURITY_GROUPS ]] ||
    stop "SUBNETS ('$SUBNETS') and SECURITY_GROUPS ('$SECURITY_GROUPS') belong together: set both, or neither"
for type in "$INSTANCE_TYPE" "$NIGHTLY_TYPE"; do # AWS refuses the job: these disks are in the machine and have their own encryption
    [[ -z $VOLUME_KMS_KEY || ! $type =~ ^ml\.(g4dn|g5|g6|g6e|p3dn|p4d|p4de|p5|p5e|p5en)\. ]] ||
        stop "VOLUME_KMS_KEY: an $type has disks of its own, which the machine encrypts, and takes no key: leave it empty"
done
[[ $ALERTS == yes || $ALERTS == no ]] || stop "ALERTS is '$ALERTS'; it must be yes or no"
export MAX_SECONDS=$((MAX_HOURS * 3600))

remove_rule() { # a rule that has targets cannot be deleted
    if ! found ResourceNotFoundException events describe-rule --name "$1"; then
        say absent "rule $1"
        return
    fi
    local targets
    targets=$(call events list-targets-by-rule --rule "$1" --query 'length(Targets)')
    if [[ $targets != 0 ]]; then
        call events remove-targets --rule "$1" --ids voxbatch >/dev/null
    fi
    call events delete-rule --name "$1"
    say gone "rule $1"
}

remove_alerts() {
    remove_rule "$FAILED_RUNS_RULE"
    remove_rule "$FAILED_JOBS_RULE"
    local alarms
    alarms=$(call cloudwatch describe-alarms --alarm-names "$DEAD_ALARM" --query 'length(MetricAlarms)')
    if [[ $alarms == 0 ]]; then
        say absent "alarm $DEAD_ALARM"
    else
        call cloudwatch delete-alarms --alarm-names "$DEAD_ALARM"
        say gone "alarm $DEAD_ALARM"
    fi
    if found 'NotFound|NotFoundException' sns get-topic-attributes --topic-arn "$TOPIC_ARN"; then
        call sns delete-topic --topic-arn "$TOPIC_ARN"
        say gone "topic $ALERT_TOPIC"
    else
        say absent "topic $ALERT_TOPIC"
    fi
}

has_pipeline() {
    local names
    names=$(call sagemaker list-pipelines --pipeline-name-prefix "$NAME" --query 'PipelineSummaries[].PipelineName') || exit
    [[ $names == *"\"$NAME\""* ]]
}
