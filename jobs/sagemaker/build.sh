#!/usr/bin/env bash
# What CodeBuild runs, in the folder of the source: `build.sh image`, or `build.sh weights`. The project is in
# template.yaml; deploy.sh starts it.
#
#   REPOSITORY, TAG       the image: ACCOUNT.dkr.ecr.REGION.amazonaws.com/NAME, and its tag
#   BASE_IMAGE            another image of vLLM; empty: the Dockerfile's
#   MODEL, MODELS         a model of the hub (OWNER/NAME), and its place: s3://BUCKET → s3://BUCKET/OWNER/NAME/
set -euo pipefail

case $1 in
    image)
        aws ecr get-login-password | docker login --username AWS --password-stdin "${REPOSITORY%%/*}"
        # Parts of SageMaker refuse an image that is a list of images, as one with provenance is. Python's image comes
        # from Amazon's copy of Docker Hub, which limits the downloads of an address that CodeBuild shares with others.
        docker build --platform linux/amd64 --provenance=false --tag "$REPOSITORY:$TAG" \
            --build-arg PYTHON_IMAGE=public.ecr.aws/docker/library/python:3.12-slim-bookworm \
            ${BASE_IMAGE:+--build-arg BASE_IMAGE="$BASE_IMAGE"} .
        # CodeBuild has no GPU, so the doctor finds no engine and exits with 1. All else must be in order.
        report=$(docker run --rm --network none "$REPOSITORY:$TAG" doctor) || [[ $? == 1 ]]
        echo "$report"
        grep -Eq '^ok +vllm ' <<<"$report" || { echo "the image has no vLLM that voxbatch knows" >&2; exit 1; }
        docker push --quiet "$REPOSITORY:$TAG"
        ;;
    weights)
        python3 -m pip install --quiet huggingface-hub==2.4.0
        python3 jobs/image/weights.py "$MODEL" main weights
        # The large files come last, so that a folder with weights is complete.
        aws s3 cp --recursive --no-progress --exclude '*.safetensors' "weights/$MODEL/main/" "$MODELS/$MODEL/"
        aws s3 cp --recursive --no-progress --exclude '*' --include '*.safetensors' "weights/$MODEL/main/" "$MODELS/$MODEL/"
        ;;
esac
