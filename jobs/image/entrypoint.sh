#!/bin/sh
# `voxbatch` in the image for GPUs: the first of that name on PATH, so that a job that replaces the image's entry point and
# calls voxbatch by name comes through here too.
#
# PyTorch is built for a CUDA that older drivers do not run by themselves. CUDA's compatibility libraries run it on the
# data-centre GPUs of such a driver, and fail beside a driver that is newer than they are. So their folder goes to the front
# of LD_LIBRARY_PATH for an older driver only. That has to happen here: a process reads the variable once, when it starts.
set -eu

compat=/usr/local/cuda/compat

driver() { # the driver's major version, e.g. 535; nothing where there is none
    # NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.216.03  Tue Oct 22 …
    found=$(sed -n 's/^NVRM version:[^.]*[[:space:]]\([0-9][0-9]*\)\..*/\1/p' /proc/driver/nvidia/version 2>/dev/null || true)
    if [ -z "$found" ] && [ -e /dev/nvidiactl ]; then # a sandbox that shows GPUs without that file
        found=$(python3 -P -c 'import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlSystemGetDriverVersion().split(".")[0])' \
            2>/dev/null || true)
    fi
    echo "$found"
}

cuda() { # the major version of the CUDA that PyTorch is built for, e.g. 13
    if [ -n "${CUDA_VERSION:-}" ]; then # set by NVIDIA's images
        echo "${CUDA_VERSION%%.*}"
    else
        python3 -P -c 'from importlib.util import find_spec as find
from runpy import run_path
print(run_path(find("torch").origin.replace("__init__", "version"))["cuda"].split(".")[0])' 2>/dev/null || true
    fi
}

installed=$(driver)
if [ -n "$installed" ] && [ -e "$compat/libcuda.so.1" ]; then
    case $(cuda) in # the first driver that runs it by itself, as in voxbatch.engines.vllm.gpu.FIRST_DRIVERS
        12) needed=525 ;;
        13) needed=580 ;;
        *) needed=0 ;;
    esac
    if [ "$installed" -lt "$needed" ]; then
        export LD_LIBRARY_PATH="$compat${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    fi
fi

# Not the script of the same name, which may lie in any folder; -P leaves out the current folder, as that script does.
exec python3 -P -m voxbatch "$@"
