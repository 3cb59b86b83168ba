#!/usr/bin/env bash
# Create the resources that start runs on SageMaker: a repository for the image, two buckets, three roles, a pipeline of
# one processing job, a queue for events that started nothing, and rules for uploads and for the nightly run. The script
# looks before it creates. A second run changes nothing; a run after a change of settings.sh changes only that.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

repository() {
    if found RepositoryNotFoundException ecr describe-repositories --repository-names "$NAME"; then
        say kept "repository $NAME"
    else
        call ecr create-repository --repository-name "$NAME" --image-scanning-configuration '{"scanOnPush": true}' >/dev/null
        say made "repository $NAME"
    fi
}

bucket() {
    local where=()
    [[ $REGION == us-east-1 ]] || where=(--create-bucket-configuration "{\"LocationConstraint\": \"$REGION\"}")
    if found '404|NoSuchBucket|NotFound' s3api head-bucket --bucket "$1"; then
        say kept "bucket $1"
        return
    fi
    call s3api create-bucket --bucket "$1" ${where[@]+"${where[@]}"} >/dev/null
    call s3api put-public-access-block --bucket "$1" --public-access-block-configuration \
        '{"BlockPublicAcls": true, "IgnorePublicAcls": true, "BlockPublicPolicy": true, "RestrictPublicBuckets": true}'
    say made "bucket $1"
}

events_of_bucket() { # switch EventBridge on; keep the bucket's other notifications
    local has new
    has=$(call s3api get-bucket-notification-configuration --bucket "$1" | canonical)
    new=$(python3 -c 'import json, sys; print(json.dumps({**json.loads(sys.argv[1]), "EventBridgeConfiguration": {}}))' \
        "$has" | canonical)
    if [[ $new == "$has" ]]; then
        say kept "events of bucket $1"
    else
        call s3api put-bucket-notification-configuration --bucket "$1" --notification-configuration "$new"
        say changed "events of bucket $1: now go to EventBridge"
    fi
}

new_role=
role() { # role NAME FILE
    local trust policy
    trust=$(render "policies/$2-trust.json")
    policy=$(render "policies/$2.json")
    if ! found NoSuchEntity iam get-role --role-name "$1" --query Role.AssumeRolePolicyDocument; then
        call iam create-role --role-name "$1" --assume-role-policy-document "$trust" >/dev/null
        new_role=yes
        say made "role $1"
    elif [[ $(canonical <<<"$answer") != "$trust" ]]; then
        call iam update-assume-role-policy --role-name "$1" --policy-document "$trust"
        say changed "role $1: who may take it"
    else
        say kept "role $1"
    fi
    if found NoSuchEntity iam get-role-policy --role-name "$1" --policy-name "$NAME" --query PolicyDocument &&
        [[ $(canonical <<<"$answer") == "$policy" ]]; then
        say kept "policy of role $1"
    else
        call iam put-role-policy --role-name "$1" --policy-name "$NAME" --policy-document "$policy"
        new_role=yes
        say changed "policy of role $1"
    fi
}

queue() {
    local url policy has new
    policy=$(render policies/dead.json)
    if found 'AWS.SimpleQueueService.NonExistentQueue|QueueDoesNotExist' \
        sqs get-queue-url --queue-name "$DEAD_QUEUE" --query QueueUrl --output text; then
        url=$answer
        say kept "queue $DEAD_QUEUE"
    else
        url=$(call sqs create-queue --queue-name "$DEAD_QUEUE" --attributes '{"MessageRetentionPeriod": "1209600"}' \
            --query QueueUrl --output text)
        say made "queue $DEAD_QUEUE"
    fi
    has=$(call sqs get-queue-attributes --queue-url "$url" --attribute-names Policy --query Attributes.Policy)
    if [[ $has != null && -n $has && $(canonical <<<"$has") == "$policy" ]]; then
        say kept "policy of queue $DEAD_QUEUE"
    else
        new=$(python3 -c 'import json, sys; print(json.dumps({"Policy": sys.argv[1]}))' "$policy")
        call sqs set-queue-attributes --queue-url "$url" --attributes "$new"
        say changed "policy of queue $DEAD_QUEUE"
    fi
}

pipeline() {
    local role has
    role=arn:$PARTITION:iam::$ACCOUNT:role/$CREATE_ROLE
    if ! has_pipeline; then
        call sagemaker create-pipeline --pipeline-name "$NAME" --pipeline-definition "$definition" --role-arn "$role" \
            --pipeline-description "voxbatch run, started by uploads and nightly" >/dev/null
        say made "pipeline $NAME"
        return
    fi
    has=$(call sagemaker describe-pipeline --pipeline-name "$NAME" --query PipelineDefinition | canonical)
    if [[ $has == "$definition" ]]; then
        say kept "pipeline $NAME"
    else
        call sagemaker update-pipeline --pipeline-name "$NAME" --pipeline-definition "$definition" --role-arn "$role" \
            >/dev/null
        say changed "pipeline $NAME"
    fi
}

rule() { # rule NAME --event-pattern|--schedule-expression VALUE TARGET-FILE
    local member=EventPattern wanted targets has failed
    [[ $2 == --event-pattern ]] || member=ScheduleExpression
    wanted=$(python3 -c 'import json, sys; print(json.dumps(["ENABLED", sys.argv[1]]))' "$3" | canonical)
    if found ResourceNotFoundException events describe-rule --name "$1" --query "[State, $member]" &&
        [[ $(canonical <<<"$answer") == "$wanted" ]]; then
        say kept "rule $1"
    else
        call events put-rule --name "$1" "$2" "$3" --state ENABLED >/dev/null
        say changed "rule $1"
    fi
    targets=$(render "$4")
    has=$(call events list-targets-by-rule --rule "$1" --query Targets | canonical)
    if [[ $has == "$targets" ]]; then
        say kept "target of rule $1"
    else
        failed=$(call events put-targets --rule "$1" --targets "$targets" --query FailedEntryCount)
        [[ $failed == 0 ]] || stop "rule $1: EventBridge did not take its target $targets"
        say changed "target of rule $1"
    fi
}

image() {
    local id="[{\"imageTag\": \"$IMAGE_TAG\"}]"
    [[ $IMAGE_TAG != sha256:* ]] || id="[{\"imageDigest\": \"$IMAGE_TAG\"}]"
    if found ImageNotFoundException ecr describe-images --repository-name "$NAME" --image-ids "$id"; then
        say kept "image $IMAGE"
    else
        say absent "image $IMAGE: no run starts before it is there. From the folder of the Dockerfile:"
        printf '         %s\n' \
            "aws ecr get-login-password --region $REGION | docker login --username AWS --password-stdin ${IMAGE%%/*}" \
            "docker build --platform linux/amd64 -t $IMAGE . && docker push $IMAGE"
    fi
}

definition=$(render pipeline.json) # render first: this checks the options before anything is created
repository
bucket "$IN_BUCKET"
bucket "$OUT_BUCKET"
events_of_bucket "$IN_BUCKET"
role "$RUN_ROLE" run
role "$CREATE_ROLE" pipeline
role "$START_ROLE" start
[[ -z $new_role ]] || sleep "${SETTLE_SECONDS:-15}" # AWS needs a while until it knows a new role everywhere
queue
pipeline
pattern=$(render rules/uploads.json)
rule "$UPLOADS_RULE" --event-pattern "$pattern" rules/uploads-target.json
if [[ -n $SCHEDULE ]]; then
    rule "$NIGHTLY_RULE" --schedule-expression "$SCHEDULE" rules/nightly-target.json
else
    remove_rule "$NIGHTLY_RULE"
fi
image
