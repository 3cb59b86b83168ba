#!/bin/sh
# The entry point of a host that receives its own files (ShardedByS3Key). It transcribes all of these files into a
# folder of its own, which SageMaker uploads next to the folders of the other hosts. Its arguments are options of
# `voxbatch run`.
#
#   /opt/ml/processing/input/recordings/…      this host's files
#   /opt/ml/processing/output/algo-2/…         this host's outputs
#
# If the recordings can stay in the bucket, `voxbatch run s3://… -o s3://…` needs no script, resumes after a kill, and
# merges the hosts' outputs: see docs/sagemaker.md.
set -eu

base=${SAGEMAKER_BASE_DIR:-/opt/ml}
source=$base/processing/input/recordings
resources=$base/config/resourceconfig.json

stop() { # stop REASON; the reason becomes the job's ExitMessage
    echo "entry.sh: $1" >&2
    { mkdir -p "$base/output" && printf '%s' "$1" >"$base/output/message"; } 2>/dev/null || true
    exit 2
}

[ -f "$resources" ] || stop "$resources is not there: this script is for SageMaker Processing jobs"
host=$(sed -n 's/.*"current_host"[[:space:]]*:[[:space:]]*"\([A-Za-z0-9._-]*\)".*/\1/p' "$resources")
[ -n "$host" ] || stop "$resources names no current_host"
[ -d "$source" ] || stop "$source is not there: the job needs an input with that LocalPath"

out=$base/processing/output/$host
if ! mkdir -p "$out" 2>/dev/null || [ ! -w "$out" ]; then
    stop "user $(id -u) cannot write to $out: to use the host's folders the image must run as root; s3:// needs none"
fi

if [ -z "$(find "$source" -type f | head -n 1)" ]; then
    echo "entry.sh: $host was given no files: fewer objects than hosts" >&2
    exit 0
fi

# --tasks none: SageMaker has already divided the files. Failed recordings are listed in failures.jsonl; exit code 0,
# because the outputs of a failed job would not be uploaded.
exec voxbatch run "$source" -o "$out" --tasks none --exit-zero "$@"
