#!/usr/bin/env bash
# Create an endpoint of SageMaker that runs `voxbatch serve`, or update it: a repository for the image and a bucket for
# the weights, and the stack of template.yaml. The script stops where something of yours is missing, the image or the
# weights, with the commands that bring it. A second run changes nothing.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=../steps.sh
. "$here/steps.sh"

[[ $MODE == realtime || $MODE == async ]] || stop "MODE is '$MODE'; it must be realtime or async"
for setting in MAX_INSTANCES INVOCATIONS_PER_MINUTE; do
    [[ ${!setting} =~ ^[1-9][0-9]*$ ]] || stop "$setting is '${!setting}'; it must be a whole number from 1"
done
[[ $MODEL_PREFIX == [!/]*/ ]] || stop "MODEL_PREFIX is '$MODEL_PREFIX'; it must end in / and not begin with it"
for setting in SUCCESS_TOPIC ERROR_TOPIC; do
    [[ -z ${!setting} || ${!setting} == "$arn"sns:?*:?*:?* ]] || stop "$setting is '${!setting}'; it must be a topic's ARN"
    [[ -z ${!setting} || $MODE == async ]] || stop "$setting: only MODE=async has notifications"
done
[[ -r $SERVING_PROPERTIES ]] || stop "SERVING_PROPERTIES is '$SERVING_PROPERTIES'; there is no such file"
grep -qE '^option\.model_id *= */opt/ml/model/?$' "$SERVING_PROPERTIES" ||
    stop "$SERVING_PROPERTIES has no line option.model_id=/opt/ml/model: SageMaker puts the weights there"
CONCURRENCY=$(sed -nE 's/^option\.(max_rolling_batch_size|max_num_seqs) *= *([1-9][0-9]*) *$/\2/p' "$SERVING_PROPERTIES")
[[ $CONCURRENCY =~ ^[0-9]+$ ]] || stop "$SERVING_PROPERTIES has no line option.max_rolling_batch_size=N, from 1: the requests at a time"

before() { # before NAME: put a parameter of the last deployment into $answer; return 1 if there was none
    found ValidationError cloudformation describe-stacks --stack-name "$STACK" --output text \
        --query "Stacks[0].Parameters[?ParameterKey=='$1'].ParameterValue"
}

same_mode() { # an endpoint cannot change from the one to the other
    ! before Mode || [[ $answer == "$MODE" ]] ||
        stop "endpoint $NAME is $answer, and an endpoint stays what it is: run teardown.sh first, or set MODE=$answer"
}

whom_to_tell() { # set ALERT_EMAIL to "no", or to the address of the last deployment if none is given
    if [[ $ALERTS == no ]]; then
        ALERT_EMAIL=no
        return
    fi
    [[ -z $ALERT_EMAIL ]] || return 0
    if before AlertEmail; then ALERT_EMAIL=$answer; fi
    [[ $ALERT_EMAIL == *@* ]] || stop "nobody would be told of errors: set ALERT_EMAIL to a mail address, or ALERTS=no"
}

weights() {
    local names
    names=$(call s3api list-objects-v2 --bucket "$MODEL_BUCKET" --prefix "$MODEL_PREFIX" --query 'Contents[].Key')
    if [[ $names == *.safetensors* ]]; then
        say kept "weights s3://$MODEL_BUCKET/$MODEL_PREFIX"
        return
    fi
    say absent "weights s3://$MODEL_BUCKET/$MODEL_PREFIX. Bring them, and run deploy.sh again:"
    printf '         %s\n' \
        "hf download mistralai/Voxtral-Mini-3B-2507 --exclude 'model*.safetensors*' --local-dir voxtral" \
        "aws s3 cp --recursive voxtral s3://$MODEL_BUCKET/$MODEL_PREFIX"
    stop "there are no weights yet"
}

properties() { # put serving.properties beside the weights
    sum=$(python3 -c 'import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], "rb").read()).hexdigest())' \
        "$SERVING_PROPERTIES")
    if found '404|NoSuchKey|NotFound' s3api head-object --bucket "$MODEL_BUCKET" --key "${MODEL_PREFIX}serving.properties" \
        --query Metadata.sha256 --output text && [[ $answer == "$sum" ]]; then
        say kept serving.properties
    else
        call s3api put-object --bucket "$MODEL_BUCKET" --key "${MODEL_PREFIX}serving.properties" \
            --body "$SERVING_PROPERTIES" --metadata "{\"sha256\": \"$sum\"}" >/dev/null
        say changed serving.properties
    fi
}

stack() {
    local given said
    given=("Name=$NAME" "Mode=$MODE" "Image=$IMAGE" "Bucket=$MODEL_BUCKET" "ModelPrefix=$MODEL_PREFIX" "Properties=$sum"
        "Concurrency=$CONCURRENCY" "InstanceType=$INSTANCE_TYPE" "MaxInstances=$MAX_INSTANCES"
        "InvocationsPerMinute=$INVOCATIONS_PER_MINUTE" "SuccessTopic=$SUCCESS_TOPIC" "ErrorTopic=$ERROR_TOPIC"
        "AlertEmail=$ALERT_EMAIL" "Subnets=$SUBNETS" "SecurityGroups=$SECURITY_GROUPS" "KmsKey=$KMS_KEY"
        "VolumeKmsKey=$VOLUME_KMS_KEY")
    if found ValidationError cloudformation describe-stacks --stack-name "$STACK" --query 'Stacks[0].StackStatus' \
        --output text && [[ $answer == ROLLBACK_COMPLETE ]]; then
        stop "stack $STACK could not be created, and cannot be changed. The reason is in
    aws cloudformation describe-stack-events --stack-name $STACK --query \"StackEvents[?ResourceStatus=='CREATE_FAILED']\"
Set it right, then run teardown.sh and deploy.sh again. A quota for '$INSTANCE_TYPE for endpoint usage' is often 0 at first"
    fi
    say making "stack $STACK: an instance starts within 5 to 15 minutes"
    # shellcheck disable=SC2086 # a word for each tag
    said=$(call cloudformation deploy --stack-name "$STACK" --template-file "$here/endpoint/template.yaml" \
        --capabilities CAPABILITY_NAMED_IAM --no-fail-on-empty-changeset --parameter-overrides "${given[@]}" \
        ${TAGS:+--tags ${TAGS//,/ }})
    if [[ $said == *"No changes to deploy"* ]]; then say kept "stack $STACK"; else say changed "stack $STACK"; fi
}

same_mode
whom_to_tell
repository
image
bucket "$MODEL_BUCKET"
weights
properties
stack
if [[ $MODE == realtime ]]; then
    say ready "endpoint $NAME: python examples/clients/sagemaker_client.py $NAME 'What is said?' call.wav"
else
    say ready "endpoint $NAME: put requests below s3://$MODEL_BUCKET/endpoint/in/; answers come to s3://$MODEL_BUCKET/endpoint/out/"
fi
