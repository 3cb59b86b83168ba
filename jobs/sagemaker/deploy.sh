#!/usr/bin/env bash
# Create the resources that start runs on SageMaker: a repository for the image, two buckets, three roles, a pipeline of
# one processing job, a queue for events that started nothing, rules for uploads and for the nightly run, and a topic for
# alerts. The script looks before it creates. A second run changes nothing; a run after a change of settings.sh changes
# only that. Without an image in the repository it stops after the repository; push the image and run it again.
# template.yaml describes the same resources for CloudFormation.
set -euo pipefail
# shellcheck source=common.sh
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
# shellcheck source=steps.sh
. "$here/steps.sh"

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

whom_to_tell() { # ask for ALERT_EMAIL, unless the topic has subscribers
    [[ $ALERTS == yes && -z $ALERT_EMAIL ]] || return 0
    if found 'NotFound|NotFoundException' sns list-subscriptions-by-topic --topic-arn "$TOPIC_ARN" \
        --query 'length(Subscriptions)' && [[ $answer != 0 ]]; then
        return
    fi
    if [[ -t 0 ]]; then read -r -p "mail address for alerts about failed runs (empty: stop): " ALERT_EMAIL; fi
    [[ -n $ALERT_EMAIL ]] || stop "nobody would be told of failed runs: set ALERT_EMAIL to a mail address, or ALERTS=no"
}

alerts() {
    local policy has alarm
    policy=$(render policies/alerts.json)
    if found 'NotFound|NotFoundException' sns get-topic-attributes --topic-arn "$TOPIC_ARN" --query Attributes.Policy; then
        say kept "topic $ALERT_TOPIC"
    else
        call sns create-topic --name "$ALERT_TOPIC" >/dev/null
        say made "topic $ALERT_TOPIC"
    fi
    if [[ -n $answer && $(canonical <<<"$answer") == "$policy" ]]; then
        say kept "policy of topic $ALERT_TOPIC"
    else
        call sns set-topic-attributes --topic-arn "$TOPIC_ARN" --attribute-name Policy --attribute-value "$policy"
        say changed "policy of topic $ALERT_TOPIC"
    fi
    has=$(call sns list-subscriptions-by-topic --topic-arn "$TOPIC_ARN" --query 'Subscriptions[].Endpoint')
    if [[ -z $ALERT_EMAIL || $has == *"\"$ALERT_EMAIL\""* ]]; then
        say kept "subscribers of topic $ALERT_TOPIC"
    else
        call sns subscribe --topic-arn "$TOPIC_ARN" --protocol email --notification-endpoint "$ALERT_EMAIL" >/dev/null
        say changed "subscribers of topic $ALERT_TOPIC: $ALERT_EMAIL must confirm the message that AWS sends now"
    fi
    rule "$FAILED_RUNS_RULE" --event-pattern "$(render rules/failed-runs.json)" rules/failed-runs-target.json
    rule "$FAILED_JOBS_RULE" --event-pattern "$(render rules/failed-jobs.json)" rules/failed-jobs-target.json
    alarm="[\"$TOPIC_ARN\",\"AWS/SQS\",\"ApproximateNumberOfMessagesVisible\",\"QueueName\",\"$DEAD_QUEUE\",\"Maximum\",300,1,0.0,\"GreaterThanThreshold\",\"notBreaching\"]"
    has=$(call cloudwatch describe-alarms --alarm-names "$DEAD_ALARM" --query "MetricAlarms[0].[AlarmActions[0], Namespace,
        MetricName, Dimensions[0].Name, Dimensions[0].Value, Statistic, Period, EvaluationPeriods, Threshold,
        ComparisonOperator, TreatMissingData]" | canonical)
    if [[ $has == "$alarm" ]]; then
        say kept "alarm $DEAD_ALARM"
    else
        call cloudwatch put-metric-alarm --alarm-name "$DEAD_ALARM" \
            --alarm-description "voxbatch: an event started nothing; read the queue $DEAD_QUEUE" \
            --namespace AWS/SQS --metric-name ApproximateNumberOfMessagesVisible --statistic Maximum \
            --dimensions "[{\"Name\": \"QueueName\", \"Value\": \"$DEAD_QUEUE\"}]" --period 300 --evaluation-periods 1 \
            --threshold 0 --comparison-operator GreaterThanThreshold --treat-missing-data notBreaching \
            --alarm-actions "$TOPIC_ARN"
        say changed "alarm $DEAD_ALARM"
    fi
}

tags() { # IAM's roles have a command of their own
    local wanted arns role rule missing failed
    wanted=$(python3 "$here/render.py" tags)
    for role in "$RUN_ROLE" "$CREATE_ROLE" "$START_ROLE"; do
        missing=$(call iam list-role-tags --role-name "$role" --query "[['$role', Tags]]" |
            python3 "$here/render.py" untagged "$role")
        if [[ -z $missing ]]; then
            say kept "tags of role $role"
        else
            call iam tag-role --role-name "$role" --tags "$wanted"
            say changed "tags of role $role"
        fi
    done
    arns=("arn:$PARTITION:s3:::$IN_BUCKET" "arn:$PARTITION:s3:::$OUT_BUCKET"
        "arn:$PARTITION:ecr:$REGION:$ACCOUNT:repository/$NAME" "arn:$PARTITION:sqs:$REGION:$ACCOUNT:$DEAD_QUEUE"
        "arn:$PARTITION:sagemaker:$REGION:$ACCOUNT:pipeline/$NAME")
    rule=arn:$PARTITION:events:$REGION:$ACCOUNT:rule/
    arns+=("$rule$UPLOADS_RULE")
    [[ -z $SCHEDULE ]] || arns+=("$rule$NIGHTLY_RULE")
    [[ $ALERTS == no ]] || arns+=("$rule$FAILED_RUNS_RULE" "$rule$FAILED_JOBS_RULE" "$TOPIC_ARN"
        "arn:$PARTITION:cloudwatch:$REGION:$ACCOUNT:alarm:$DEAD_ALARM")
    missing=$(call resourcegroupstaggingapi get-resources --resource-arn-list "${arns[@]}" \
        --query 'ResourceTagMappingList[].[ResourceARN, Tags]' | python3 "$here/render.py" untagged "${arns[@]}")
    if [[ -z $missing ]]; then
        say kept "tags of the other resources"
    else
        wanted=$(python3 -c 'import json, sys
print(json.dumps({each["Key"]: each["Value"] for each in json.loads(sys.argv[1])}))' "$wanted")
        # shellcheck disable=SC2086 # one word for each ARN
        failed=$(call resourcegroupstaggingapi tag-resources --resource-arn-list $missing --tags "$wanted" \
            --query FailedResourcesMap)
        [[ $failed == "{}" || $failed == null ]] || stop "some resources took no tags: $failed"
        say changed "tags of $(wc -w <<<"$missing" | tr -d ' ') other resources"
    fi
}

export IMAGE
render pipeline.json >/dev/null # this checks the options before anything is created
whom_to_tell
repository
image
definition=$(render pipeline.json)
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
if [[ $ALERTS == yes ]]; then alerts; else remove_alerts; fi
[[ -z $TAGS ]] || tags
