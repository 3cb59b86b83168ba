#!/usr/bin/env bash
# Publish ten dead letters again, each into the topic that it came from: replay_dead_letters.sh [SUBSCRIPTION]
#
# A letter is acknowledged after it was published, and copied into dead-letters.jsonl. Text of a letter is never run.
set -euo pipefail

dead="${1:-voxbatch-dead}" # of a worker on GKE: voxbatch-gke-dead
gcloud pubsub subscriptions pull "$dead" --limit=10 --format=json | jq -c '.[]' |
    while IFS= read -r letter; do
        topic=$(jq -r '.message.attributes.voxbatch_subscription // "" | split("/")[-1] |
            if IN("voxbatch-nightly", "voxbatch-gke") then . else "voxbatch-uploads" end' <<<"$letter") &&
        flags=$(jq '.message.data as $data | .message.attributes as $a | if $a.eventType
            then {"--message": "{}", "--attribute": ($a | {eventType, bucketId, objectId, objectGeneration})}
            else $data | @base64d | fromjson as $asked | if @base64 == $data then {"--message": .}
            else error("a message that is not UTF-8") end end' <<<"$letter") &&
        gcloud pubsub topics publish "$topic" --flags-file=- <<<"$flags" &&
        printf '%s\n' "$letter" >>dead-letters.jsonl &&
        gcloud pubsub subscriptions ack "$dead" --ack-ids="$(jq -r .ackId <<<"$letter")" ||
        echo "stays: $(jq -c .message.messageId <<<"$letter")" >&2
    done
