"""Make prompts in processes of their own: a clip goes in, and what vLLM's LLMEngine.add_request takes comes out.

vLLM computes the spectrogram of a clip by Hugging Face's processor of the model, in the process that makes requests.
Threads there would wait for Python's lock at each call of PyTorch, and the engine for its prompts. The processes here
are forked from the engine's process when that has imported vLLM, and before it uses a GPU. So they share the memory of
its modules, and the kernel kills them with it.
"""

from __future__ import annotations

import io
import os
import pickle
import signal
import socket
import struct
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

from voxbatch.vllm.plugin import parent_watchdog

NAME = "prompts"
"""The name of the processes, as ps and top show it."""
PATIENCE_S = 120.0
"""Seconds without an answer after which a process is given up. At its start, it imports the class of the model."""


def rendered(renderer: Any, prompt: Mapping[str, Any]) -> Any:
    """Return what the processor of the model makes from a prompt, in the form that LLMEngine.add_request takes.

    Args:
        renderer: vLLM's renderer of the model.
        prompt: the prompt in the form that vLLM's `LLM.generate` takes.

    Raises:
        ValueError: vLLM does not accept the prompt.
    """
    from vllm.renderers.inputs.preprocess import parse_model_prompt

    (made,) = renderer.render_cmpl([parse_model_prompt(renderer.model_config, prompt)])
    return made


def fork(sockets: Sequence[socket.socket]) -> None:
    """Start a process for each socket, and close the sockets in this process.

    Each process takes vLLM's configuration first, then one prompt after another.
    """
    os.environ[parent_watchdog.PARENT] = str(os.getpid())
    for number, own in enumerate(sockets, 1):
        if os.fork() == 0:
            try:
                parent_watchdog.die_with_parent()
                Path("/proc/self/comm").write_text(NAME)
                signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when this process ends
                for other in sockets[number:]:
                    other.close()
                _serve(own, number)
            except (EOFError, OSError):  # nobody wants prompts any more
                pass
            except BaseException:  # noqa: BLE001 the engine's log has it, and the parent makes the prompts
                traceback.print_exc()
            finally:
                os._exit(0)
        own.close()


def _serve(own: socket.socket, number: int) -> None:
    """Answer prompts until the other end is closed.

    Raises:
        EOFError, OSError: the other end is closed.
    """
    config = receive(own)
    import torch
    from vllm.renderers import renderer_from_config

    from voxbatch.vllm.plugin.patches import skip_decoder_start_token

    torch.set_num_threads(1)
    skip_decoder_start_token.add_no_start_token()
    renderer = renderer_from_config(config)
    renderer.api_process_rank = number  # it is part of the audio's name, by which the engine finds encoded audio
    while True:
        prompt = receive(own)
        try:
            answer = rendered(renderer, prompt)
        except Exception as e:  # noqa: BLE001 it fails the chunk in the process that asked
            answer = ValueError(str(e) if isinstance(e, ValueError) else f"{type(e).__name__}: {e}")
        send(own, answer)


# -- messages ----------------------------------------------------------------------------------------------------------


class _Pickler(ForkingPickler):
    """A pickler that keeps the memory of tensors and arrays out of the pickled bytes."""

    def reducer_override(self, value: Any) -> Any:
        """Return how a tensor is made again from its memory; see pickle.Pickler."""
        import torch

        if type(value) is not torch.Tensor:
            return NotImplemented
        flat = value.contiguous().as_strided((value.numel(),), (1,))  # a single number may have any stride
        memory = flat.view(torch.uint8).numpy()
        return _tensor, (pickle.PickleBuffer(memory), value.dtype, tuple(value.shape))


def _tensor(memory: Any, dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    return (torch.frombuffer(memory, dtype=dtype) if len(memory) else torch.empty(0, dtype=dtype)).view(shape)


def send(other: socket.socket, message: object) -> None:
    """Send an object. Its arrays and tensors are sent from their memory, without Python's lock.

    Raises:
        OSError: the other end is closed, or takes nothing for PATIENCE_S.
    """
    pickled, buffers = io.BytesIO(), list[pickle.PickleBuffer]()
    _Pickler(pickled, 5, True, buffers.append).dump(message)
    views = [pickled.getbuffer(), *(buffer.raw() for buffer in buffers)]
    other.sendall(struct.pack(f"{len(views) + 1}q", len(views), *(view.nbytes for view in views)))
    for view in views:
        other.sendall(view)


def receive(other: socket.socket) -> Any:
    """Return the next object of the other end, whose arrays and tensors may be written to.

    Raises:
        EOFError, OSError: the other end is closed, or sends nothing for PATIENCE_S.
    """
    (count,) = struct.unpack("q", _read(other, 8))
    pickled, *buffers = (_read(other, size) for size in struct.unpack(f"{count}q", _read(other, 8 * count)))
    return pickle.loads(pickled, buffers=buffers)  # noqa: S301 the other end is voxbatch, too


def _read(other: socket.socket, size: int) -> memoryview:
    import numpy as np

    view = np.empty(size, np.uint8).data
    done = 0
    while done < size:
        if not (length := other.recv_into(view[done:])):
            raise EOFError
        done += length
    return view
