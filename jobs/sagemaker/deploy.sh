#!/usr/bin/env bash
# Set up transcription on SageMaker with one command: check settings and quota, create or change the stack of
# template.yaml, let CodeBuild build the image and bring the weights, and transcribe one recording as a trial. A second
# run changes nothing; a run after a change of settings.sh changes only that.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

[[ $MAX_HOURS =~ ^[1-9][0-9]*$ ]] || stop "MAX_HOURS is '$MAX_HOURS'; it must be a whole number from 1"
[[ $BUILD == @(|yes|no) ]] || stop "BUILD is '$BUILD'; it must be yes, no or empty"
[[ $VERIFY == @(|yes|no) ]] || stop "VERIFY is '$VERIFY'; it must be yes, no or empty"
[[ $BUILD != yes || $IMAGE_TAG != sha256:* ]] || stop "BUILD=yes makes a tag: IMAGE_TAG is a digest"
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

verify() { # transcribe one recording by the pipeline, and print what it heard
    local name run state=Executing
    name=verify/$(date -u +%Y%m%d-%H%M%S)
    call s3 cp --only-show-errors "$here/../../examples/recordings/weather.flac" "s3://$IN_BUCKET/$name/weather.flac"
    run=$(call sagemaker start-pipeline-execution --pipeline-name "$NAME" --query PipelineExecutionArn --output text \
        --pipeline-parameters "[{\"Name\": \"Key\", \"Value\": \"$name/\"}, {\"Name\": \"OutputName\", \"Value\": \"$name\"},
            {\"Name\": \"InstanceCount\", \"Value\": \"1\"}]")
    say running "trial $run: one recording, 10 to 20 minutes"
    while [[ $state == @(Executing|Stopping) ]]; do
        sleep "${POLL_SECONDS:-30}"
        state=$(call sagemaker describe-pipeline-execution --pipeline-execution-arn "$run" \
            --query PipelineExecutionStatus --output text)
    done
    [[ $state == Succeeded ]] || stop "the trial ended as $state: $(call sagemaker list-pipeline-execution-steps \
        --pipeline-execution-arn "$run" --query 'PipelineExecutionSteps[].FailureReason' --output text). Its log: \
aws logs tail /aws/sagemaker/ProcessingJobs --since 1h"
    call s3 cp --only-show-errors "s3://$OUT_BUCKET/$name/transcripts.jsonl" "$work/transcripts.jsonl"
    say ready "it heard: $(python3 -c 'import json, sys; print(json.loads(sys.stdin.readline())["pred_text"])' \
        <"$work/transcripts.jsonl")"
}

whom_to_tell "$NAME"
can_run=yes
for type in $(printf '%s\n' "$INSTANCE_TYPE" ${SCHEDULE:+"${NIGHTLY_TYPE:-$INSTANCE_TYPE}"} | sort -u); do
    quota "$type for processing job usage" "$INSTANCE_COUNT" || can_run=no
done
make_in=$(make_bucket "$IN_BUCKET")
make_out=$(make_bucket "$OUT_BUCKET")
make_models=$(make_bucket "$MODELS_BUCKET")
make_repository=$(make_repository)
ground=("Name=$NAME" "InBucket=$IN_BUCKET" "OutBucket=$OUT_BUCKET" "ModelsBucket=$MODELS_BUCKET" "MakeInBucket=$make_in"
    "MakeOutBucket=$make_out" "MakeModelsBucket=$make_models" "MakeRepository=$make_repository" "AlertEmail=$ALERT_EMAIL"
    "KmsKey=$KMS_KEY" "HubTokenSecret=$HUB_TOKEN_SECRET")
runs=("Uploads=$UPLOADS" "Schedule=$SCHEDULE" "Nightly=$NIGHTLY" "NightlyType=${NIGHTLY_TYPE:-$INSTANCE_TYPE}"
    "InstanceType=$INSTANCE_TYPE" "FallbackTypes=$FALLBACK_TYPES" "InstanceCount=$INSTANCE_COUNT" "DiskGB=$DISK_GB"
    "MaxSeconds=$((MAX_HOURS * 3600))" "Subnets=$SUBNETS" "SecurityGroups=$SECURITY_GROUPS"
    "VolumeKmsKey=$VOLUME_KMS_KEY" "Tags=$(sed -E 's/([^=,]+)=([^,]*)/{"Key": "\1", "Value": "\2"}/g' <<<"$TAGS")")

builds=()
if [[ $BUILD == yes ]] || ! has_image; then builds+=(image); fi
if [[ -n $MODEL ]] && ! { has_bucket "$MODELS_BUCKET" && has_weights "$MODELS_BUCKET" "$MODEL/"; }; then builds+=(weights); fi
if [[ ${#builds[@]} != 0 ]]; then # what a build needs: a pipeline stays as it is, and a new one comes with the image
    if has_stack "$NAME"; then first=(); else first=("${runs[@]}" "Options=$(options)"); fi
    deploy_stack "$NAME" template.yaml "${ground[@]}" ${first[@]+"${first[@]}"}
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
[[ -z $MODEL ]] || export VOXBATCH_MODEL=s3://$MODELS_BUCKET/$MODEL/
deploy_stack "$NAME" template.yaml "${ground[@]}" "${runs[@]}" "Options=$(options)" "ImageDigest=$DIGEST"
[[ $make_in == yes ]] || events
if [[ $VERIFY == yes && $can_run == yes ]]; then verify; fi
say ready "aws s3 cp calls.jsonl s3://$IN_BUCKET/$UPLOADS → s3://$OUT_BUCKET/${UPLOADS}calls/"
