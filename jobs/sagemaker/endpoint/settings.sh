# Settings of deploy.sh and teardown.sh, besides those of ../settings.sh: NAME (of the endpoint, too), IMAGE_TAG,
# INSTANCE_TYPE, FALLBACK_TYPES, ALERTS, ALERT_EMAIL, TAGS, SUBNETS, SECURITY_GROUPS, KMS_KEY, VOLUME_KMS_KEY. To change
# one, set its variable: MODE=async ./deploy.sh. The endpoint's stack remembers them.
# shellcheck shell=bash disable=SC2153

: "${MODE:=realtime}"                        # realtime: an answer within 60 s; async: from S3 to S3, and no instance without requests
: "${MODEL:=mistralai/Voxtral-Mini-3B-2507}" # a model of the hub; CodeBuild brings it into the models bucket, once
: "${MODEL_BUCKET:=$MODELS_BUCKET}"          # another bucket with weights; async has endpoint/in/ and endpoint/out/ in it
: "${MODEL_PREFIX:=$MODEL/}"                 # folder of the bucket with the weights, as the hub has them
: "${SERVING_PROPERTIES:=}"                  # default: serving.properties of this folder
: "${MAX_INSTANCES:=1}"                      # each is one INSTANCE_TYPE
: "${INVOCATIONS_PER_MINUTE:=60}"            # realtime adds an instance if one gets more
: "${SUCCESS_TOPIC:=}"                       # ARN of a topic of SNS that hears of each answer of async; empty: none
: "${ERROR_TOPIC:=}"                         # ARN of a topic of SNS that hears of each failure of async; empty: none
