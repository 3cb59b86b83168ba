"""The differences between the models and between the tasks, behind one interface. Nothing else asks which one it is.

`choice` takes the family of a model and a task. The class gives vLLM's arguments, the scheduler and the limits. An
instance is made from the small files of a model, without its weights; its method `load` loads the tokenizer when the
engine starts. It makes requests from audio, and text from tokens. Faults are handled elsewhere.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from voxbatch.engines.pieces import Piece
from voxbatch.engines.suspect_text import PieceText
from voxbatch.errors import ConfigError
from voxbatch.records import SAMPLING_RATE, Answer, Speech
from voxbatch.vllm.engine import fp8, memory
from voxbatch.vllm.engine.families.request import Request, TokenScores
from voxbatch.vllm.engine.model import Model, missing_weights, weights_bytes
from voxbatch.vllm.engine.settings import ASK, VllmSettings

PROMPT_PROCESSES = 4
"""Most processes for spectrograms that vLLM's processors compute on the CPU. 30 s of audio take 12 to 24 ms (Intel
Xeon, Qwen3-ASR and Granite Speech)."""
CORES_PER_PROMPT_PROCESS = 4
"""Number of the machine's cores for each of them."""
OTHER_REQUESTS = 128
"""Number of requests at a time if the memory of a request is unknown, as for Whisper. Its audio always takes 1,500
positions: 480 MB in all layers of large-v3."""


class Family(ABC):
    """The interface of a family of models that does one task.

    The class knows the family, before the files of a model are there: its options, vLLM's arguments and its limits. An
    instance knows one model, and makes requests. The facts without a comment are those of EngineSpec.
    """

    name: str
    """The name in a run's identity."""
    profile: str
    """The profile whose engine options are the defaults of the family."""
    default_context = 0
    """Default of max_model_len; 0 takes the profile's."""
    chooses_context = False
    """True if the family chooses the context where max_model_len is 0."""

    # voxbatch's plugin
    plugin_by_default = False
    """True if `auto` runs the plugin."""
    runs_in_plugin_alone = ""
    """The name of a model that stock vLLM cannot run, for a message. Empty if stock vLLM can run the family."""
    why_no_plugin = "the plugin runs Voxtral models only, and this is none"
    """The reason why the plugin cannot run the family. Empty if it can."""
    has_plugin_attention = False
    """True if the plugin's attention can run the family."""
    reproducible_dtype = ""
    """The number format in which the results of the family were the same in any company of requests; see the option
    `reproducible`. Empty if they were not, or differed."""
    is_reproducible_in_8_bits = False
    """True if this also holds for the parts in the option `fp8`."""
    why_not_reproducible = "its results were not compared in other company"
    """The reason if there is no such format."""
    compiles_reproducibly = True
    """True if a reproducible run has compiled code. False if vLLM leaves it out of some steps, which round differently:
    then no step has it."""
    takes_fp8 = False
    """True if the option `fp8` knows the parts of the model."""
    encoder_has_kv = False
    """True if the encoder has a K/V cache in stock vLLM."""

    # vLLM's arguments
    form = "auto"
    """vLLM's name of the format of the configuration, the weights and the tokenizer."""
    max_inputs: Mapping[str, int] = {"audio": 1}
    """Largest number of inputs of each kind in a request. vLLM sets memory aside for each of them."""
    shares_prefixes = False
    """True if requests begin alike. No two recordings do, so that hashing them is useless."""
    slots: int | None = None
    """Number of requests that the model itself keeps a state for (`vllm.plugin.speech`). None if it keeps none."""

    # the work
    has_small_jobs = True
    """True if the chunks of a complete feed tell how many steps a job has; see arguments.small_job_chunks."""
    prefetch = 64
    """Number of decoded chunks that wait for the engine: about 4 s of work for a fast GPU."""
    scores = True
    """True if the probabilities of the tokens give a confidence."""
    decoding_settings: tuple[str, ...] = ("watch", "max_model_len")
    """The engine options that influence the text of this family, besides those of every family."""
    fills_memory = False
    """True if the number of requests follows from the memory before the files of the model are read."""
    has_speed_forecast = False
    """True if `speed` has the formulas of the family."""

    max_chunk_samples: int
    """Length of the longest piece, in samples."""
    prompt_tokens: int
    """The largest number of positions that a prompt, with its audio, takes in a step of the engine."""
    decoding: Mapping[str, Any] = {}
    """The family's options that influence the text. They are part of a run's identity."""
    request_bytes = 0
    """Memory of a typical request in the K/V cache, on all GPUs together, if the shape of the model does not tell. 0 if
    it is unknown."""
    warning = ""
    """Warning for the user about the model, or an empty string."""
    languages: frozenset[str] | None = None
    uses_language = False
    takes_hints = False
    translates = False
    word_times = False
    max_recordings = 0
    max_question_samples = 0
    sampling_rate = SAMPLING_RATE
    voices: tuple[str, ...] = ()
    scripts: tuple[str, ...] = ()
    max_requests: int | None = None
    """Largest number of requests at a time. None leaves it to the memory."""
    computes_spectrograms = False
    """True if vLLM's processor of the model makes spectrograms on the CPU, in processes of their own."""
    proof: Piece | None = None
    """The piece of a request that shows whether the engine is alive. None means a second of silence."""

    @classmethod
    def check(cls, model: Model, settings: VllmSettings, prefilled: bool) -> None:
        """Check that the settings fit the family.

        Args:
            prefilled: the plugin runs the model (see prefill.decide).

        Raises:
            ConfigError: a setting contradicts the family.
        """
        if settings.delay_ms:
            raise ConfigError(
                f"engine option delay_ms={settings.delay_ms}: {model.name} has no delay, only Voxtral Realtime has "
                "one; leave the option out"
            )

    @classmethod
    def arguments(cls, settings: VllmSettings, is_translated: bool = False) -> dict[str, Any]:
        """Return the arguments of vLLM's `LLM` that depend on the settings alone and not on the machine.

        Args:
            is_translated: see Model.is_translated.
        """
        options = {
            "max_model_len": settings.max_model_len,
            "max_num_batched_tokens": settings.max_num_batched_tokens,
            "block_size": settings.block_size,
            "attention_backend": settings.attention_backend,
            "quantization": settings.quantization,
        }
        return {
            **cls.formats(settings, is_translated),
            "dtype": settings.dtype,
            "tensor_parallel_size": settings.tensor_parallel_size,
            "enforce_eager": settings.enforce_eager,
            **({"limit_mm_per_prompt": dict(cls.max_inputs)} if cls.max_inputs else {}),
            "seed": 0,
            "enable_prefix_caching": cls.shares_prefixes,
            "mm_processor_cache_gb": 0,  # no two recordings are alike
            "disable_log_stats": True,
            **cls.own_arguments(),
            **{name: value for name, value in options.items() if value},
            **fp8.arguments(settings.fp8_parts),
        }

    @classmethod
    def formats(cls, settings: VllmSettings, is_translated: bool) -> dict[str, str]:
        """Return the arguments that say in which format the files of the model are; see `arguments`."""
        names = ("config_format", "load_format", "tokenizer_mode")
        return {name: getattr(settings, name) or cls.form for name in names}

    @classmethod
    def own_arguments(cls) -> dict[str, Any]:
        """Return arguments that only this family has."""
        return {}

    @classmethod
    def scheduler(cls, settings: VllmSettings, on_cpu: bool, kind: str = "Batch") -> str | None:
        """Return module.Class of voxbatch's scheduler, or None for vLLM's own.

        Args:
            kind: "Batch" for a batch job, "Serving" for a server.
        """
        return None

    @classmethod
    def requests(cls, model: Model, settings: VllmSettings, prefilled: bool, room: float, request_bytes: int) -> int:
        """Return the number of requests at a time that the memory admits.

        Args:
            prefilled: see `check`.
            room: bytes that vLLM may plan with on all GPUs together.
            request_bytes: the attribute of the instance; 0 if there is none.
        """
        if not request_bytes:
            return OTHER_REQUESTS
        return memory.admitted(room - (weights_bytes(model) or missing_weights(model)), request_bytes)

    @classmethod
    def unplanned_bytes(
        cls, model: Model, settings: VllmSettings, prefilled: bool, planned: float, requests: int
    ) -> float:
        """Return the bytes that vLLM fills on each GPU beyond its plan, of the `planned` bytes of a GPU."""
        return 0

    @classmethod
    def step_tokens(cls, requests: int, prefilled: bool, on_cpu: bool) -> int:
        """Return the number of positions in a step if the settings give none; 0 leaves it to vLLM."""
        return 0

    @classmethod
    def small_kv_bytes(
        cls, model: Model, settings: VllmSettings, prefilled: bool, room: float, rows: int
    ) -> int | None:
        """Return the K/V cache of a small job, in bytes on each GPU; None: vLLM measures.

        Args:
            room: see `requests`.
            rows: largest number of requests at a time.
        """
        return None

    @classmethod
    def serving_folder(cls, model: Model, settings: VllmSettings, aligns_stream: bool = False) -> Path:
        """Return the folder that vLLM loads: the folder of the model, or one with links to it (see linked_folder)."""
        return model.path

    @classmethod
    def longest_chunk_s(cls, settings: VllmSettings) -> float | None:
        """Return the length of the longest chunk before the files of the model are read. None for a model that
        speaks."""
        return cls.max_chunk_samples / SAMPLING_RATE

    @classmethod
    def licence_warning(cls, model: Model) -> str:
        """Return what a user must know of the licence of a model, or an empty string."""
        return ""

    @classmethod
    def check_serving(cls, settings: VllmSettings, options: Mapping[str, str]) -> None:
        """Check that a server can have these options.

        Raises:
            ConfigError: it cannot.
        """
        if settings.task == ASK:
            raise ConfigError(
                "engine option task=ask: it is for voxbatch ask; a server of Voxtral Mini or Small answers questions "
                "at /v1/chat/completions without it"
            )

    @classmethod
    def serving_arguments(cls) -> dict[str, Any]:
        """Return arguments that only a server of this family has."""
        return {}

    @classmethod
    def other_server(
        cls, model: Model, settings: VllmSettings, options: Mapping[str, str], served_name: str
    ) -> tuple[list[str], dict[str, Any]] | None:
        """Return the command and the arguments of the server of a family that vLLM's own server does not serve.

        Returns:
            The module and its first words, and the arguments by name; None for vLLM's own server.
        """
        return None

    def __init__(self, model: Model, settings: VllmSettings):
        self._name = model.name
        self.max_model_len = settings.max_model_len
        """Number of positions of the context."""

    def load(self, folder: Path) -> None:  # noqa: B027 a family may have loaded its tokenizer before
        """Load the tokenizer of the model in `folder`.

        Raises:
            EngineError: the tokenizer counts tokens differently than voxbatch.
        """

    @abstractmethod
    def request(self, piece: Piece) -> Request:
        """Return the request for a piece.

        Raises:
            UnsupportedPiece: the model cannot take the piece.
        """

    @abstractmethod
    def read(
        self, piece: Piece, token_ids: list[int], finish_reason: str, scores: TokenScores | None = None
    ) -> PieceText | Piece | Answer | Speech:
        """Return the text of the tokens that the model wrote for a piece.

        Args:
            piece: the audio of the request; for a SpokenPiece the speech.
            finish_reason: vLLM's "stop" or "length".

        Returns:
            The text, the answer to a question, or the speech of a text; or a Piece if another request is needed: the
            same piece with its language, for example.

        Raises:
            UnusableAnswer: the answer does not have the form that the question asks for.
        """
