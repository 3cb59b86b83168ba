"""Let vLLM's CPU build run Triton kernels by Triton's interpreter, in each process with this folder on its path.

vLLM's CPU build refuses Triton without a backend for CPUs, and the package index has no such backend. Python imports
this module by its name when a process starts.
"""

import os
from types import SimpleNamespace

os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported

from triton.backends import backends

backends["cpu"] = SimpleNamespace(driver=SimpleNamespace(is_active=lambda: True), compiler=None)
