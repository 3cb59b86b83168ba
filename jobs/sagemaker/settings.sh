# Settings of deploy.sh and teardown.sh, with their defaults. To change one, set its variable: INSTANCE_COUNT=8 ./deploy.sh
# The stack remembers what was set, except NAME, BUILD, VERIFY and REPLACE: the next deploy.sh takes it. SCHEDULE= sets one
# back to its default, and --defaults all of them.
# shellcheck shell=bash

: "${NAME:=voxbatch}"               # name of the stack, the repository and the pipeline, and prefix of every other name
: "${IN_BUCKET:=}"                  # default: NAME-in-ACCOUNT-REGION; may exist
: "${OUT_BUCKET:=}"                 # default: NAME-out-ACCOUNT-REGION; may exist; never IN_BUCKET
: "${MODELS_BUCKET:=}"              # default: NAME-models-ACCOUNT-REGION; may exist; models, and the source of the image
: "${UPLOADS:=uploads/}"            # a manifest (.jsonl, .jsonl.gz) uploaded below it starts a run
: "${SCHEDULE:=}"                   # UTC, such as cron(0 2 * * ? *) or rate(1 day); empty: no nightly run
: "${NIGHTLY:=nightly/}"            # source of the nightly run: a folder of recordings (with / at its end), or a manifest
: "${NIGHTLY_TYPE:=}"               # machine of the nightly run, which has one host: more GPUs do more; default: INSTANCE_TYPE
: "${INSTANCE_TYPE:=ml.g6.2xlarge}" # one L4; new accounts must ask for its quota "for processing job usage"
: "${FALLBACK_TYPES:=}"             # up to four machines to take if INSTANCE_TYPE is not free: ml.g6e.2xlarge,ml.g7.2xlarge
: "${INSTANCE_COUNT:=4}"            # most hosts of a run that an upload starts; the quota may allow fewer
: "${HOURS_PER_HOST:=400}"          # hours of audio for each of these hosts, by the durations in the manifest; 400 take some 4 h
: "${HOSTS_PER_DAY:=100}"             # hosts of all runs of a UTC day; an upload beyond them goes to the queue of dead letters
: "${DISK_GB:=100}"                 # disk of each host, for the image and a model that is not in it
: "${MAX_HOURS:=24}"                # after this time SageMaker stops the job; committed items are safe

: "${REPLACE:=no}"                  # yes: take a bucket or queue from the stack where a setting replaces it; deploy.sh asks

# The image and the model.
: "${BUILD:=}"         # yes: build the image again; no: never, you push it; empty: build it if the repository has none
: "${BASE_IMAGE:=}"    # another image of vLLM to build on, such as a copy in your own registry; empty: the Dockerfile's
: "${IMAGE_TAG:=latest}" # tag of the image in the repository, or its digest, sha256:…; runs use the digest
: "${MODEL:=}"         # a model of the hub, OWNER/NAME: a build brings it into the models bucket, once; empty: each host downloads
: "${KERNELS:=no}"     # yes: compile the kernels, after VERIFY or once, into the models bucket; the runs read them there
: "${VERIFY:=}"        # yes: transcribe one recording of examples/ afterwards; no: never; empty: after a build

# Who is told of runs that failed or were stopped, and of events that started nothing. deploy.sh asks for the address.
: "${ALERTS:=yes}"      # no: nobody
: "${ALERT_EMAIL:=}"    # a mail address; AWS sends it a message to confirm

# What an account may require. Empty: not used.
: "${TAGS:=}"             # of all resources and jobs: NAME=VALUE,NAME=VALUE
: "${SUBNETS:=}"          # of a VPC, in which the jobs run: subnet-…,subnet-…; they need a way to S3, ECR, CloudWatch Logs
: "${SECURITY_GROUPS:=}"  # with SUBNETS: sg-…,sg-…
: "${KMS_KEY:=}"          # ARN of the key that encrypts the buckets
: "${VOLUME_KMS_KEY:=}"   # ARN of the key that encrypts the disks of the hosts
: "${HUB_TOKEN_SECRET:=}" # ARN of the secret in Secrets Manager that holds the hub token, as plain text

# Any option of `voxbatch run` is passed to the job if it is exported as VOXBATCH_… when deploy.sh runs, for example:
# export VOXBATCH_PROFILE=small-24b VOXBATCH_FORMATS=srt,vtt VOXBATCH_MODEL=s3://MODELS_BUCKET/voxtral/
# The stack remembers them, too; VOXBATCH_FORMATS= takes one away.
