# syntax=docker/dockerfile:1

# voxbatch as an image, in two targets:
#
#   gpu (the default)  on vLLM's own image:      docker build -t voxbatch .
#   cpu                the embedded engine:      docker build --target cpu -t voxbatch:cpu .
#
# Both have the extras gcs, s3, pubsub and cloudrun, run as user 10001, and take voxbatch's arguments, for example
# `run gs://… -o gs://…`. They have no HEALTHCHECK, because they are jobs: they end, and their exit code tells the result.
#
#   --build-arg BASE_IMAGE=vllm/vllm-openai@sha256:…    another base with vLLM 0.32, or the same by its digest
#   --build-arg PYTHON_IMAGE=python@sha256:…            another base for the target cpu and the build stages
#   --build-arg MODEL=mistralai/Voxtral-Mini-4B-Realtime-2602 [--build-arg MODEL_REVISION=…] --secret id=hf_token,env=HF_TOKEN
#                                                       with these weights in the image; by default it has none
#
# Parakeet runs in the same image, by vLLM's PyTorch: MODEL=nvidia/parakeet-tdt-0.6b-v3, or `--model parakeet`.
#
# A model that is not in the image is mounted (--model /FOLDER), or comes from a bucket (--model gs://…) or from the
# hub.

# voxbatch was measured with the packages of vLLM 0.32.0 on a GPU, but not in this image: the tag follows vLLM's release
# script, and nobody here has pulled it. It is built for CUDA 13, which drivers from 580 on run by themselves. With an
# older driver the image loads CUDA's compatibility libraries: see jobs/image/entrypoint.sh.
ARG BASE_IMAGE=vllm/vllm-openai:v0.32.0
ARG PYTHON_IMAGE=python:3.12-slim-bookworm


# ── the package, built once for both targets ──────────────────────────────────────────────────────────────────────────

FROM ${PYTHON_IMAGE} AS wheel
WORKDIR /src
COPY requirements-build.lock ./
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv /venv \
    && /venv/bin/python -m pip install --quiet --only-binary :all: --require-hashes -r requirements-build.lock
COPY pyproject.toml README.md LICENSE ./
COPY voxbatch voxbatch
RUN /venv/bin/python -m pip wheel --quiet --no-index --no-deps --no-build-isolation --wheel-dir /dist .


# ── tini, the first process of both ───────────────────────────────────────────────────────────────────────────────────
# tini passes SIGTERM on to voxbatch, which commits the finished items and exits with 143. tini also reaps the zombie
# processes of ffmpeg and vLLM; as process 1, voxbatch would collect them for as long as it runs. A shell would not pass
# signals on. `tini -g` is not used: the signal is for voxbatch alone, which then ends its decoders and the engine in
# order. The static binary runs on any base, so that neither target has to install a package of its distribution.

FROM ${PYTHON_IMAGE} AS tini
# No version is pinned: a distribution keeps only one, so a pinned version disappears with the next one.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/*


# ── cpu ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

FROM ${PYTHON_IMAGE} AS cpu
COPY --from=tini /usr/bin/tini-static /usr/bin/tini
# Group 0 has the user's write permissions: a platform that runs each container under its own user keeps that group.
RUN useradd --uid 10001 --gid 0 --create-home --home-dir /home/voxbatch --shell /usr/sbin/nologin voxbatch \
    && install --directory --owner=10001 --group=0 --mode=2775 /cache /data \
    && chmod 2775 /home/voxbatch
COPY requirements.lock requirements-clouds.lock /src/
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 -m venv /opt/voxbatch \
    && /opt/voxbatch/bin/python -m pip install --quiet --only-binary :all: --require-hashes \
        -r /src/requirements.lock -r /src/requirements-clouds.lock
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    /opt/voxbatch/bin/python -m pip install --quiet --no-cache-dir --no-index --no-deps /dist/*.whl \
    && /opt/voxbatch/bin/python -m pip check
# HOME and USER are for a user that /etc/passwd does not contain. See the target gpu for /cache.
ENV PATH=/opt/voxbatch/bin:$PATH \
    HOME=/home/voxbatch \
    USER=voxbatch \
    XDG_CACHE_HOME=/cache \
    HF_HOME=/cache/huggingface
USER 10001:0
WORKDIR /data
ENTRYPOINT ["/usr/bin/tini", "--", "voxbatch"]
CMD ["--help"]
# These come last, because they differ from build to build.
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="voxbatch (cpu)" \
      org.opencontainers.image.description="Batch speech transcription with the embedded engine" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"


# ── weights for the target gpu: a folder that is empty without MODEL ──────────────────────────────────────────────────
# The weights have their own stage, so that no change of code or dependencies downloads 9 GB again. The token is a file
# that exists only during this step, and is in no layer.

FROM ${BASE_IMAGE} AS weights
ARG MODEL=
ARG MODEL_REVISION=main
COPY jobs/image/weights.py /src/
RUN --mount=type=secret,id=hf_token \
    python3 /src/weights.py "${MODEL}" "${MODEL_REVISION}" /opt/models


# ── gpu ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

FROM ${BASE_IMAGE} AS gpu
# Some bases end as another user; our user is set below, when everything is installed.
USER 0
COPY --from=tini /usr/bin/tini-static /usr/bin/tini
RUN useradd --uid 10001 --gid 0 --create-home --home-dir /home/voxbatch --shell /usr/sbin/nologin voxbatch \
    && install --directory --owner=10001 --group=0 --mode=2775 /cache /data \
    && chmod 2775 /home/voxbatch
# Install only the packages that the image lacks, at the locked versions. beside.py fails the build if a package of the
# image has another version afterwards, or if `pip check` has a new complaint: vLLM and PyTorch stay the versions that
# the image was tested with.
COPY jobs/image/beside.py requirements-clouds.lock /src/
RUN --mount=type=cache,target=/root/.cache/pip \
    python3 /src/beside.py /src/requirements-clouds.lock
# The user of the container cannot write Python's bytecode beside the packages. Where the base image has none, each start
# would compile some 5,000 modules. Bytecode that is up to date stays as it is. compileall complains about templates that
# are no Python, which nothing imports.
RUN python3 -m compileall -q -j 0 "$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" > /dev/null || true
# This `voxbatch` is on PATH before the package's own script. If the driver is older than PyTorch's CUDA requires (580
# for CUDA 13; as old as 535 on an L4), it loads CUDA's compatibility libraries, which vLLM's image contains. Then it
# runs voxbatch.
COPY --chmod=0755 jobs/image/entrypoint.sh /opt/voxbatch/bin/voxbatch
COPY --from=weights /opt/models /opt/models
RUN --mount=type=bind,from=wheel,source=/dist,target=/dist \
    python3 /src/beside.py /dist/*.whl gcs s3 pubsub cloudrun
# All files that are compiled or downloaded at run time are below /cache: torch.compile's and Triton's kernels and
# vLLM's graphs of them, CUDA's own kernels, models from the hub and from buckets, and voxbatch's folders of links to
# models. If /cache is kept, the next start on the same kind of GPU reads them instead of compiling. To keep it, mount a
# volume that user 10001 may write, or put the files of a first run into your own image:
#
#   mkdir -m 777 cache; docker run --gpus all -v "$PWD/cache:/cache" … voxbatch run …
#   printf 'FROM voxbatch\nCOPY --chown=10001:0 . /cache\n' | docker build -t voxbatch:warm -f - cache
#
# The keys are vLLM's version, the model, the settings and the GPU: files that do not fit are compiled again.
ARG MODEL=
ARG MODEL_REVISION=main
ENV PATH=/opt/voxbatch/bin:$PATH \
    HOME=/home/voxbatch \
    USER=voxbatch \
    XDG_CACHE_HOME=/cache \
    HF_HOME=/cache/huggingface \
    VLLM_CACHE_ROOT=/cache/vllm \
    TORCHINDUCTOR_CACHE_DIR=/cache/torchinductor \
    TRITON_CACHE_DIR=/cache/triton \
    CUDA_CACHE_PATH=/cache/nv \
    FLASHINFER_WORKSPACE_BASE=/cache \
    VLLM_NO_USAGE_STATS=1 \
    VOXBATCH_MODEL=${MODEL:+/opt/models/$MODEL/$MODEL_REVISION}
USER 10001:0
WORKDIR /data
ENTRYPOINT ["/usr/bin/tini", "--", "voxbatch"]
CMD ["--help"]
ARG VERSION=unknown
ARG REVISION=unknown
LABEL org.opencontainers.image.title="voxbatch" \
      org.opencontainers.image.description="Batch speech transcription with vLLM" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
