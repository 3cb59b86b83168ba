# What deploy.sh and teardown.sh go by. Change it here, or give a variable to one call: INSTANCE_COUNT=4 ./deploy.sh
# shellcheck shell=bash

: "${NAME:=voxbatch}"               # of the repository and the pipeline, and what every other name begins with
: "${IMAGE_TAG:=latest}"            # of the image in the repository; or a digest, sha256:…
: "${IN_BUCKET:=}"                  # default: NAME-in-ACCOUNT-REGION; may exist
: "${OUT_BUCKET:=}"                 # default: NAME-out-ACCOUNT-REGION; may exist; never IN_BUCKET
: "${UPLOADS:=uploads/}"            # a manifest (.jsonl, .jsonl.gz) uploaded below it starts a run
: "${SCHEDULE:=}"                   # UTC, such as cron(0 2 * * ? *) or rate(1 day); empty: nothing nightly
: "${NIGHTLY:=nightly/}"            # what the schedule runs: a manifest, or a folder of recordings (with / at its end)
: "${INSTANCE_TYPE:=ml.g6.2xlarge}" # one L4; new accounts must ask for its quota "for processing job usage"
: "${INSTANCE_COUNT:=1}"            # hosts a run, each of which takes a shard
: "${DISK_GB:=100}"                 # of each host: the image, and a model that is not in it
: "${MAX_HOURS:=24}"                # then SageMaker stops the job; what is committed is safe

# Any option of `voxbatch run` goes into the job as VOXBATCH_…: what is exported under such a name when deploy.sh runs.
# export VOXBATCH_PROFILE=small-24b VOXBATCH_FORMATS=srt,vtt VOXBATCH_MODEL=s3://BUCKET/models/voxtral/
