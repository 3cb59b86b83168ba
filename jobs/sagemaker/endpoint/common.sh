# The part that deploy.sh and teardown.sh of the endpoint share. Source this file; do not run it.
# shellcheck shell=bash disable=SC2034,SC2153,SC2154

# shellcheck source=../common.sh
. "$(dirname "${BASH_SOURCE[0]}")/../common.sh"
# shellcheck source=settings.sh
. "$here/endpoint/settings.sh"

MODEL_BUCKET=${MODEL_BUCKET:-$NAME-models-$ACCOUNT-$REGION}
SERVING_PROPERTIES=${SERVING_PROPERTIES:-$here/endpoint/serving.properties}
STACK=$NAME-endpoint
