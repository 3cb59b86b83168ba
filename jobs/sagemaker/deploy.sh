#!/usr/bin/env bash
# Set up transcription on SageMaker with one command: check settings and quota, create or change the stack of
# template.yaml, let CodeBuild build the image and bring the weights, and transcribe one recording as a trial. A second
# run changes nothing; a run with another setting changes only that. --dry-run shows the plan of the stack.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

option "$DEPLOY_OPTIONS" "$@"
recall "$NAME"
# shellcheck disable=SC2046 # a word for each setting
remember $(names_in "$here/settings.sh")
check_settings
[[ $MAX_HOURS =~ ^[1-9][0-9]*$ ]] || stop "MAX_HOURS is '$MAX_HOURS'; it must be a whole number from 1"
[[ $BUILD == @(|yes|no) ]] || stop "BUILD is '$BUILD'; it must be yes, no or empty"
[[ $VERIFY == @(|yes|no) ]] || stop "VERIFY is '$VERIFY'; it must be yes, no or empty"
[[ $KERNELS == @(yes|no) ]] || stop "KERNELS is '$KERNELS'; it must be yes or no"
[[ ${VOXBATCH_KERNEL_CACHE:-} != @("s3://$IN_BUCKET"|"s3://$OUT_BUCKET")?(/*) ]] ||
    stop "VOXBATCH_KERNEL_CACHE is $VOXBATCH_KERNEL_CACHE: kernels are code, and this bucket holds what strangers wrote. Use KERNELS=yes"
[[ ${VOXBATCH_MODEL:-} != @("s3://$IN_BUCKET"|"s3://$OUT_BUCKET")?(/*) ]] ||
    stop "VOXBATCH_MODEL is $VOXBATCH_MODEL: a model may hold code, and this bucket holds what strangers wrote. Use s3://$MODELS_BUCKET/"
[[ $BUILD != yes || $IMAGE_TAG != sha256:* ]] || stop "BUILD=yes makes a tag: IMAGE_TAG is a digest"
[[ $SCHEDULE =~ ^((cron|rate)\(.+\))?$ ]] || # AWS refuses it only with the pipeline, after a build of an hour
    stop "SCHEDULE is '$SCHEDULE'; AWS takes cron(0 2 * * ? *), in UTC, or rate(1 day)"
[[ -z $SCHEDULE || ($NIGHTLY != "$UPLOADS"* && $UPLOADS != "$NIGHTLY"*) ]] ||
    stop "NIGHTLY ($NIGHTLY) and UPLOADS ($UPLOADS) lie one in the other: what is uploaded would be run twice"

ours() { # ours TYPE NAME: whether the stack has this resource
    found ValidationError cloudformation describe-stack-resources --stack-name "$NAME" --output text \
        --query "StackResources[?ResourceType=='$1' && PhysicalResourceId=='$2'].ResourceStatus" && [[ -n $answer ]]
}

make_bucket() { # print whether the stack makes the bucket: yes, unless somebody else did
    if ours AWS::S3::Bucket "$1" || ! has_bucket "$1"; then echo yes; else echo no; fi
}

make_repository() {
    if ours AWS::ECR::Repository "$NAME" ||
        ! found RepositoryNotFoundException ecr describe-repositories --repository-names "$NAME"; then
        echo yes
    else
        echo no
    fi
}

options() { # print the exported options of `voxbatch run` as members of a JSON object, each with a comma
    local name
    for name in $(compgen -A export VOXBATCH_); do
        [[ -z ${!name} ]] || printf '"%s": "%s", ' "$name" "${!name}"
    done
}

events() { # switch EventBridge on for a bucket that is not of the stack, and keep the bucket's other notifications
    local has new
    has=$(call s3api get-bucket-notification-configuration --bucket "$IN_BUCKET")
    if [[ $has == *EventBridgeConfiguration* ]]; then
        say kept "events of bucket $IN_BUCKET"
    else
        new=$(python3 -c 'import json, sys; print(json.dumps({**json.loads(sys.argv[1] or "{}"), "EventBridgeConfiguration": {}}))' "$has")
        call s3api put-bucket-notification-configuration --bucket "$IN_BUCKET" --notification-configuration "$new"
        say changed "events of bucket $IN_BUCKET: now go to EventBridge"
    fi
}

has_kernels() {
    [[ $(call s3api list-objects-v2 --bucket "$MODELS_BUCKET" --prefix kernels/compiled/ --query 'Contents[].Key') == *.gz* ]]
}

by_pipeline() { # by_pipeline WHAT JSON…: start the pipeline on one host, with these parameters, and wait for its end
    local what=$1 run state=Executing
    shift
    run=$(call sagemaker start-pipeline-execution --pipeline-name "$NAME" --query PipelineExecutionArn --output text \
        --pipeline-parameters "[$(printf '%s, ' "$@"){\"Name\": \"InstanceCount\", \"Value\": \"1\"}]")
    say running "$what $run: 10 to 20 minutes"
    while [[ $state == @(Executing|Stopping) ]]; do
        sleep "${POLL_SECONDS:-30}"
        state=$(call sagemaker describe-pipeline-execution --pipeline-execution-arn "$run" \
            --query PipelineExecutionStatus --output text)
    done
    [[ $state == Succeeded ]] || stop "$what ended as $state: $(call sagemaker list-pipeline-execution-steps \
        --pipeline-execution-arn "$run" --query 'PipelineExecutionSteps[].FailureReason' --output text). Its log: \
aws logs tail /aws/sagemaker/ProcessingJobs --since 1h"
}

with() { # with NAME VALUE: print a parameter of the pipeline
    printf '{"Name": "%s", "Value": "%s"}' "$1" "$2"
}

recording=$here/../../examples/recordings/weather.flac

verify() { # transcribe one recording by the pipeline, and print what it heard
    local name
    name=verify/$(date -u +%Y%m%d-%H%M%S)
    call s3 cp --only-show-errors "$recording" "s3://$IN_BUCKET/$name/weather.flac"
    by_pipeline "trial of one recording" "$(with Key "$name/")" "$(with OutputName "$name")"
    call s3 cp --only-show-errors "s3://$OUT_BUCKET/$name/transcripts.jsonl" "$work/transcripts.jsonl"
    say ready "it heard: $(python3 -c 'import json, sys; print(json.loads(sys.stdin.readline())["pred_text"])' \
        <"$work/transcripts.jsonl")"
}

# 2.7 hours of audio: a run whose chunks are all decoded before the model is loaded (64 of them) compiles nothing.
KERNEL_LINES=1000

compile_kernels() { # compile the kernels on one host: only a run of a recording of ours, with a role of its own, writes them
    local place=kernels/source line role
    for ((line = 0; line < KERNEL_LINES; line++)); do
        printf '{"id": "%d", "audio_filepath": "weather.flac", "duration": 9.857}\n' "$line"
    done >"$work/kernels.jsonl"
    call s3 cp --only-show-errors "$recording" "s3://$MODELS_BUCKET/$place/weather.flac"
    call s3 cp --only-show-errors "$work/kernels.jsonl" "s3://$MODELS_BUCKET/$place/kernels.jsonl"
    role=$(call iam get-role --role-name "$NAME-kernels" --query Role.Arn --output text)
    by_pipeline "run that compiles the kernels" "$(with Bucket "$MODELS_BUCKET")" "$(with Key "$place/kernels.jsonl")" \
        "$(with Output "s3://$MODELS_BUCKET/kernels/runs")" "$(with OutputName "$(date -u +%Y%m%d-%H%M%S)")" \
        "$(with Role "$role")"
    say ready "kernels in $VOXBATCH_KERNEL_CACHE"
}

whom_to_tell "$NAME"
can_run=yes
for type in $(printf '%s\n' "$INSTANCE_TYPE" ${SCHEDULE:+"${NIGHTLY_TYPE:-$INSTANCE_TYPE}"} | sort -u); do
    quota "$type for processing job usage" 1 || can_run=no
    if [[ $type == "$INSTANCE_TYPE" && -n $allowed && $INSTANCE_COUNT =~ ^[0-9]+$ ]] && ((1 < INSTANCE_COUNT && allowed < INSTANCE_COUNT)); then
        INSTANCE_COUNT=$((allowed > 1 ? allowed : 1)) # SageMaker waits for hours for hosts beyond the quota, and then fails
        say kept "hosts of a run: $INSTANCE_COUNT at most, by the quota of $type"
    fi
done
make_in=$(make_bucket "$IN_BUCKET")
make_out=$(make_bucket "$OUT_BUCKET")
make_models=$(make_bucket "$MODELS_BUCKET")
make_repository=$(make_repository)
ground=("Name=$NAME" "InBucket=$IN_BUCKET" "OutBucket=$OUT_BUCKET" "ModelsBucket=$MODELS_BUCKET" "MakeInBucket=$make_in"
    "MakeOutBucket=$make_out" "MakeModelsBucket=$make_models" "MakeRepository=$make_repository" "AlertEmail=$ALERT_EMAIL"
    "KmsKey=$KMS_KEY" "HubTokenSecret=$HUB_TOKEN_SECRET" "$memory")
runs=("Uploads=$UPLOADS" "Schedule=$SCHEDULE" "Nightly=$NIGHTLY" "NightlyType=${NIGHTLY_TYPE:-$INSTANCE_TYPE}"
    "InstanceType=$INSTANCE_TYPE" "FallbackTypes=$FALLBACK_TYPES" "InstanceCount=$INSTANCE_COUNT" "HoursPerHost=$HOURS_PER_HOST"
    "HostsPerDay=$HOSTS_PER_DAY" "DiskGB=$DISK_GB"
    "MaxSeconds=$((MAX_HOURS * 3600))" "Subnets=$SUBNETS" "SecurityGroups=$SECURITY_GROUPS"
    "VolumeKmsKey=$VOLUME_KMS_KEY" "Tags=$(sed -E 's/([^=,]+)=([^,]*)/{"Key": "\1", "Value": "\2"}/g' <<<"$TAGS")")

jobs_log=/aws/sagemaker/ProcessingJobs # the alarm for failed items reads it; SageMaker makes it with an account's first job
if [[ $DRY_RUN == no && $(call logs describe-log-groups --log-group-name-prefix $jobs_log --query 'logGroups[].arn') != *"$jobs_log:"* ]]; then
    call logs create-log-group --log-group-name $jobs_log
fi
builds=()
if [[ $BUILD == yes ]] || ! has_image; then builds+=(image); fi
if [[ -n $MODEL ]] && ! { has_bucket "$MODELS_BUCKET" && has_weights "$MODELS_BUCKET" "$MODEL/"; }; then builds+=(weights); fi
if [[ ${#builds[@]} != 0 ]]; then # what a build needs: a pipeline stays as it is, and a new one comes with the image
    if has_stack "$NAME"; then first=(); else first=("${runs[@]}" "Options=$(options)"); fi
    deploy_stack "$NAME" template.yaml "${ground[@]}" ${first[@]+"${first[@]}"}
    if [[ $DRY_RUN == yes ]]; then
        say plan "then a build of: ${builds[*]}; and the stack gets the pipeline with the image"
        exit
    fi
fi
for step in ${builds[@]+"${builds[@]}"}; do
    if [[ $step == weights ]]; then
        build weights "MODEL=$MODEL"
    elif [[ $BUILD != no && $IMAGE_TAG != sha256:* ]]; then
        build image "TAG=$IMAGE_TAG" "BASE_IMAGE=$BASE_IMAGE"
        VERIFY=${VERIFY:-yes}
    else
        tagged=$(call ecr describe-repositories --repository-names "$NAME" --query 'repositories[0].repositoryUri' \
            --output text):$IMAGE_TAG
        say absent "image $tagged. Push it, from the folder of the Dockerfile, and run deploy.sh again:"
        printf '         %s\n' \
            "aws ecr get-login-password --region $REGION | docker login --username AWS --password-stdin ${tagged%%/*}" \
            "docker build --platform linux/amd64 --provenance=false -t $tagged . && docker push $tagged"
        stop "there is no image yet"
    fi
done
image
[[ $KERNELS == no ]] || export VOXBATCH_KERNEL_CACHE=s3://$MODELS_BUCKET/kernels/compiled
[[ -z $MODEL ]] || export VOXBATCH_MODEL=s3://$MODELS_BUCKET/$MODEL/
deploy_stack "$NAME" template.yaml "${ground[@]}" "${runs[@]}" "Options=$(options)" "ImageDigest=$DIGEST"
[[ $DRY_RUN == no ]] || exit 0
[[ $make_in == yes ]] || events
if [[ $VERIFY == yes && $can_run == yes ]]; then verify; fi
if [[ $KERNELS == yes && $can_run == yes ]] && { [[ $VERIFY == yes ]] || ! has_kernels; }; then compile_kernels; fi
repository=$(call ecr describe-repositories --repository-names "$NAME" --query 'repositories[0].repositoryUri' --output text)
role=$(call iam get-role --role-name "$NAME-run" --query Role.Arn --output text)
say ready "voxbatch submit s3://$IN_BUCKET/calls.jsonl -o s3://$OUT_BUCKET/calls --target sagemaker --image $repository@$DIGEST --role $role${VOXBATCH_MODEL:+ --model $VOXBATCH_MODEL}${VOXBATCH_KERNEL_CACHE:+ --kernel-cache $VOXBATCH_KERNEL_CACHE}"
say ready "aws s3 cp calls.jsonl s3://$IN_BUCKET/$UPLOADS → s3://$OUT_BUCKET/${UPLOADS}calls/"
