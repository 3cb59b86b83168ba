#!/bin/sh
# The command `voxbatch` in the image for GPUs. It is the first of this name on PATH, so that a job that replaces the
# image's entry point and calls voxbatch by name also runs this script.
#
# PyTorch is built for a CUDA version that older drivers do not run by themselves. CUDA's compatibility libraries make
# it run on data-centre GPUs with such a driver, but fail with a driver that is newer than they are. So their folder is
# put first in LD_LIBRARY_PATH only for an older driver. This must happen here, because a process reads the variable
# once, when it starts.
set -eu

compat=/usr/local/cuda/compat

driver() { # print the driver's major version, e.g. 535; nothing if there is no driver
    # NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.216.03  Tue Oct 22 …
    found=$(sed -n 's/^NVRM version:[^.]*[[:space:]]\([0-9][0-9]*\)\..*/\1/p' /proc/driver/nvidia/version 2>/dev/null || true)
    if [ -z "$found" ] && [ -e /dev/nvidiactl ]; then # a sandbox may show GPUs without that file
        found=$(python3 -P -c 'import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlSystemGetDriverVersion().split(".")[0])' \
            2>/dev/null || true)
    fi
    echo "$found"
}

cuda() { # print the major version of the CUDA that PyTorch is built for, e.g. 13
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
    case $(cuda) in # the first driver that needs no compatibility libraries, as in voxbatch.engines.gpu.FIRST_DRIVERS
        12) needed=525 ;;
        13) needed=580 ;;
        *) needed=0 ;;
    esac
    if [ "$installed" -lt "$needed" ]; then
        export LD_LIBRARY_PATH="$compat${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    fi
fi

# This runs the module, not the script of the same name, which may be in any folder. -P keeps the current folder out of
# the path, as that script does.
exec python3 -P -m voxbatch "$@"
