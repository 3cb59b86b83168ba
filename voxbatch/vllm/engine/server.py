"""vLLM's own OpenAI server, or vllm-omni's for Voxtral TTS, with the arguments of a profile: its command line and its
environment.

The server answers with stock vLLM's model code: the plugin's encoder needs a whole recording, and a server may get the
audio while it is spoken. What the plugin adds otherwise is valid for a server, too: the weights in Hugging Face's
format, an encoder cache for all running requests, and recordings that are encoded alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from voxbatch.engines import gpu
from voxbatch.engines.results import EngineMessage
from voxbatch.errors import ConfigError
from voxbatch.storage import DEFAULT_STORES, Stores
from voxbatch.storage.address import is_bucket_address
from voxbatch.vllm.engine import compat, prefill
from voxbatch.vllm.engine.arguments import concurrency, llm_arguments
from voxbatch.vllm.engine.checks import check, check_installed
from voxbatch.vllm.engine.environment import set_environment, threads
from voxbatch.vllm.engine.families.choice import family_of, resolve
from voxbatch.vllm.engine.model import complete, download, locate
from voxbatch.vllm.engine.settings import TRUE
from voxbatch.vllm.plugin import LOAD_FORMAT, WORKER_EXTENSION
from voxbatch.vllm.plugin.server_guards import ALLOW_PRIVATE, CONNECTOR, CONNECTOR_VARIABLE, ServerGuards
from voxbatch.vllm.plugin.server_middleware import RATE_LIMIT, AccessLog, RateLimit

SERVER = "vllm.entrypoints.openai.api_server"
"""The module of the server. The command `vllm serve` runs it, too, and is missing in vLLM's CPU build."""
ONLY_FOR_BATCHES = ("disable_log_stats", "distributed_executor_backend", "scheduler_cls")
"""Arguments of a batch job that a server does not get: it has metrics, and a scheduler of its own."""


class Server:
    """A server for one model. The settings are checked at once; nothing is loaded.

    Args:
        model: a folder, a name on the hub, or an address; None means the default model.
        options: engine options by name, unparsed; see VllmSettings.

    Raises:
        ConfigError: the model or an option is wrong, or the option is for batch jobs only.
        EngineError: vLLM is missing or unknown, or the model cannot be found now.
    """

    def __init__(self, model: str | None, options: Mapping[str, str], stores: Stores = DEFAULT_STORES):
        distribution, version = compat.installed()
        self._on_cpu = distribution == compat.CPU_BUILD
        os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # NVML's order, as in VllmEngine
        gpu.use_only(options.get("devices", ""))
        self._model = locate(model, options.get("revision") or None, stores)
        settings = resolve(self._model.family, options)
        self._options, self._family = options, family_of(self._model.family, settings.task)
        self._family.check_serving(settings, options)
        self._settings = prefill.with_proven_scheduler(settings)
        self._warnings = [
            *filter(None, [compat.warning(distribution, version), self._family.licence_warning(self._model)])
        ]
        if self._settings.prefill_encoder == TRUE:
            raise ConfigError(
                "engine option prefill_encoder=true: the plugin's encoder needs whole recordings, and a server gets "
                "audio while it is spoken; leave the option out, or transcribe recordings with voxbatch run"
            )
        if self._settings.reproducible:
            raise ConfigError(
                "engine option reproducible=true: a server answers live audio, whose pieces depend on the moment at "
                "which they arrive; leave the option out, or transcribe recordings with voxbatch run"
            )
        check(self._model, self._settings, prefill.Decision(on=False))
        check_installed(self._model, self._settings)

    @property
    def model(self) -> str:
        """Return the name by which requests name the model: that of the hub, or of the last folder."""
        is_on_hub = self._model.revision and not is_bucket_address(self._model.name)
        return self._model.name if is_on_hub else self._model.name.rstrip("/").rpartition("/")[2]

    def bring_model(self) -> Iterator[EngineMessage]:
        """Bring the model's files to this machine, and yield warnings about the version of vLLM and the progress.

        Raises:
            EngineError: the model cannot be fetched, or a file of it is incomplete.
        """
        yield from (EngineMessage(text, is_warning=True) for text in self._warnings)
        if self._settings.load_format != "dummy":
            yield from download(self._model)
            self._model = complete(self._model)

    def arguments(self) -> dict[str, Any]:
        """Return vLLM's arguments, by the names of its engine arguments."""
        requests = concurrency(self._model, self._settings, prefilled=False)
        folder = self._family.serving_folder(self._model, self._settings, aligns_stream=True)
        arguments = llm_arguments(self._model, self._settings, False, folder, requests)
        arguments = {name: value for name, value in arguments.items() if name not in ONLY_FOR_BATCHES}
        own = self._family.scheduler(self._settings, self._on_cpu, "Serving")
        if name := self._settings.scheduler_cls or own:
            arguments["scheduler_cls"] = name
        arguments |= {"served_model_name": self.model, "worker_extension_cls": WORKER_EXTENSION}
        return arguments | self._family.serving_arguments()

    def command(self, host: str, port: int, extra_arguments: Sequence[str] = ()) -> list[str]:
        """Return the command line of the server, and set the environment that it needs in this process.

        Args:
            extra_arguments: further arguments of vLLM's server, which overrule those of voxbatch.
        """
        place = ["--host", host, "--port", str(port)]
        if other := self._family.other_server(self._model, self._settings, self._options, self.model):
            server, arguments = other
        else:
            server, arguments = [SERVER], self.arguments()
            set_environment(plugin=False, loader=arguments.get("load_format") == LOAD_FORMAT)
        os.environ.update(threads(on_gpu=not self._on_cpu))
        return [sys.executable, "-m", *server, *place, *as_flags(arguments), *extra_arguments]


def middleware(rate_limit: str | None, logs_json: bool, allow_private: bool) -> list[str]:
    """Return the flags that add our middleware to the server, and set the environment that it needs in this process.

    The last one is the outermost, so that the log has the requests that the limit refuses.

    Args:
        allow_private: the addresses that requests name may lead to this machine and to private networks.
    """
    os.environ.setdefault(CONNECTOR_VARIABLE, CONNECTOR)
    os.environ[ALLOW_PRIVATE] = str(int(allow_private))
    flags = ["--middleware", _path_of(ServerGuards)]
    if rate_limit:
        os.environ[RATE_LIMIT] = rate_limit
        flags += ["--middleware", _path_of(RateLimit)]
    if logs_json:
        flags += ["--disable-uvicorn-access-log", "--middleware", _path_of(AccessLog)]
    return flags


def _path_of(middleware_class: type) -> str:
    return f"{middleware_class.__module__}.{middleware_class.__qualname__}"


def as_flags(arguments: Mapping[str, Any]) -> list[str]:
    """Return arguments as flags of vLLM's command line.

    {"max_model_len": 512, "enforce_eager": False} → ["--max-model-len", "512", "--no-enforce-eager"]
    """
    flags: list[str] = []
    for name, value in arguments.items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        else:
            flags += [f"--{flag}", json.dumps(value) if isinstance(value, Mapping) else str(value)]
    return flags
