#!/usr/bin/env bash
# Create an endpoint of SageMaker that runs `voxbatch serve`, or change it, with one command: ../deploy.sh brings the
# image unless it has run before, CodeBuild the weights, and the stack of template.yaml has the rest. A second run changes
# nothing. --dry-run shows the plan of the stack.
set -euo pipefail
# shellcheck source=../common.sh
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
option "$DEPLOY_OPTIONS" "$@"
STACK=$NAME-endpoint
recall "$STACK"
# shellcheck disable=SC2046 # a word for each setting
remember $(names_in "$here/settings.sh" "$here/endpoint/settings.sh")
recall "$NAME" "${SHARED[@]}"
check_settings
# shellcheck source=settings.sh
. "$here/endpoint/settings.sh"

SERVING_PROPERTIES=${SERVING_PROPERTIES:-$here/endpoint/serving.properties}
[[ -r $SERVING_PROPERTIES ]] || stop "SERVING_PROPERTIES is '$SERVING_PROPERTIES'; there is no such file"
grep -qE '^option\.model_id *= */opt/ml/model/?$' "$SERVING_PROPERTIES" ||
    stop "$SERVING_PROPERTIES has no line option.model_id=/opt/ml/model: SageMaker puts the weights there"
CONCURRENCY=$(sed -nE 's/^option\.(max_rolling_batch_size|max_num_seqs) *= *([1-9][0-9]*) *$/\2/p' "$SERVING_PROPERTIES")
[[ $CONCURRENCY =~ ^[0-9]+$ ]] || stop "$SERVING_PROPERTIES has no line option.max_rolling_batch_size=N, from 1: the requests at a time"

properties() { # put serving.properties beside the weights
    sum=$(python3 -c 'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' \
        "$SERVING_PROPERTIES")
    if found '404|NoSuchKey|NotFound' s3api head-object --bucket "$MODEL_BUCKET" --key "${MODEL_PREFIX}serving.properties" \
        --query Metadata.sha256 --output text && [[ $answer == "$sum" ]]; then
        say kept serving.properties
    elif [[ $DRY_RUN == yes ]]; then
        say plan serving.properties
    else
        call s3api put-object --bucket "$MODEL_BUCKET" --key "${MODEL_PREFIX}serving.properties" \
            --body "$SERVING_PROPERTIES" --metadata "{\"sha256\": \"$sum\"}" >/dev/null
        say changed serving.properties
    fi
}

if parameter "$STACK" Mode && [[ $answer != "$MODE" ]]; then
    stop "endpoint $NAME is $answer, and an endpoint stays what it is: run teardown.sh first, or set MODE=$answer"
fi
whom_to_tell "$STACK"
quota "$INSTANCE_TYPE for endpoint usage" "$MAX_INSTANCES" || true
if ! has_stack "$NAME"; then
    ALERT_EMAIL=$ALERT_EMAIL VERIFY=no MODEL="" "$here/deploy.sh" "$@"
    [[ $DRY_RUN == no ]] || exit 0
fi
image
if ! has_weights "$MODEL_BUCKET" "$MODEL_PREFIX"; then
    [[ $MODEL_BUCKET/$MODEL_PREFIX == "$MODELS_BUCKET/$MODEL/" ]] ||
        stop "there are no weights (*.safetensors) in s3://$MODEL_BUCKET/$MODEL_PREFIX: bring them, or leave MODEL_BUCKET and MODEL_PREFIX out"
    if [[ $DRY_RUN == no ]]; then build weights "MODEL=$MODEL"; else say plan "a build of: weights"; fi
fi
[[ $DRY_RUN == yes ]] || say kept "weights s3://$MODEL_BUCKET/$MODEL_PREFIX"
properties
[[ $DRY_RUN == yes ]] || say running "stack $STACK: an instance starts within 5 to 15 minutes"
deploy_stack "$STACK" endpoint/template.yaml "Name=$NAME" "Mode=$MODE" "ImageDigest=$DIGEST" "Bucket=$MODEL_BUCKET" \
    "ModelPrefix=$MODEL_PREFIX" "Properties=$sum" "Concurrency=$CONCURRENCY" "InstanceType=$INSTANCE_TYPE" \
    "FallbackTypes=$FALLBACK_TYPES" "MaxInstances=$MAX_INSTANCES" "InvocationsPerMinute=$INVOCATIONS_PER_MINUTE" \
    "SuccessTopic=$SUCCESS_TOPIC" "ErrorTopic=$ERROR_TOPIC" "AlertEmail=$ALERT_EMAIL" "Subnets=$SUBNETS" \
    "SecurityGroups=$SECURITY_GROUPS" "KmsKey=$KMS_KEY" "VolumeKmsKey=$VOLUME_KMS_KEY" "$memory"
[[ $DRY_RUN == no ]] || exit 0
if [[ $MODE == realtime ]]; then
    say ready "endpoint $NAME: python examples/clients/sagemaker_client.py $NAME 'What is said?' call.wav"
else
    say ready "endpoint $NAME: put requests below s3://$MODEL_BUCKET/endpoint/in/; answers come to s3://$MODEL_BUCKET/endpoint/out/"
fi
