"""Import vLLM without what a batch job never uses: compilers, training, resampling, tracing.

vLLM's import takes half of a start, and these take a third of its time and half of its system calls. Tracing is left
out. All else is imported, and a function is compiled, when it is first used.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from importlib import metadata
from types import ModuleType
from typing import Any

from voxbatch.vllm.plugin import vllm_version

LAZY = {"scipy.optimize": "linear_sum_assignment", "scipy.signal": "", "torch.utils.cpp_extension": "load_inline"}
"""Modules that are imported when they are first used → the function that another module takes before that."""
REFUSED = {"torch._inductor.lowering": "vllm.env_override", "opentelemetry": "vllm.tracing.otel"}
"""Modules → the module of vLLM that can do without them, and is imported as if they were not installed."""


@contextlib.contextmanager
def lazily() -> Iterator[None]:
    """Import vLLM within this context. It begins with PyTorch and a part of vLLM. Another version of vLLM, or one that
    is imported already, is left as it is."""
    _, version = vllm_version.find() or ("", "")
    if "vllm" in sys.modules or not vllm_version.is_proven(version):
        yield
        return
    torch = importlib.import_module("torch")
    new: list[tuple[Any, str, Any]] = [
        (inspect, "getmodule", functools.partial(_module, inspect.getmodule)),
        (metadata, "packages_distributions", functools.partial(_Distributions, metadata.packages_distributions)),
        (functools, "lru_cache", functools.partial(_cache, functools.lru_cache)),
        (torch, "compile", _compile_at_first_call(torch.compile)),
    ]
    usual = [(owner, name, getattr(owner, name)) for owner, name, _ in new]
    missing = {name: _stub(name, function) for name, function in LAZY.items() if name not in sys.modules}
    stubs = {name: stub for name, stub in missing.items() if stub is not None}
    for owner, name, value in new:
        setattr(owner, name, value)
    sys.modules.update(stubs)
    try:
        for name in [name for name in REFUSED if name not in sys.modules]:
            with contextlib.suppress(Exception):  # it is imported again, where an error can be reported
                sys.modules[name] = None  # type: ignore[assignment]
                importlib.import_module(REFUSED[name])
            del sys.modules[name]
        yield
    finally:
        for owner, name, value in usual:
            setattr(owner, name, value)
        for name in [name for name, stub in stubs.items() if sys.modules.get(name) is stub]:
            del sys.modules[name]


def _stub(name: str, function: str) -> ModuleType | None:
    """Return a module that stands for another one, and imports it when an attribute or the function is used. Return
    None if the other module is not installed."""

    def imported(attribute: str) -> Any:
        if attribute == "__path__":  # `from module import name` asks for it, and no package is without
            raise AttributeError(attribute)
        if sys.modules.get(name) is stub:
            del sys.modules[name]
        return getattr(importlib.import_module(name), attribute)

    spec = None
    with contextlib.suppress(ModuleNotFoundError):  # of its package
        spec = importlib.util.find_spec(name)
    if spec is None:
        return None
    stub = importlib.util.module_from_spec(spec)
    stub.__getattr__ = imported  # type: ignore[method-assign]
    if function:
        setattr(stub, function, lambda *args, **kwargs: imported(function)(*args, **kwargs))  # noqa: PLW0108
    return stub


def _compile_at_first_call(usual: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch.compile that, as a decorator in the body of a module or class, compiles at the function's first
    call. PyTorch's compiler and what it needs are imported then, and vLLM's patch of it is made (REFUSED)."""
    torch = sys.modules["torch"]

    def compile_now(model: Any, **options: Any) -> Any:
        if patch := getattr(sys.modules.get("vllm.env_override"), "_patch_inductor_fallback_allow_list", None):
            patch()
        return usual(model, **options)

    def compile_later(model: Any = None, **options: Any) -> Any:
        if model is None:
            return functools.partial(compile_later, **options)
        if not inspect.isfunction(model) or sys._getframe(1).f_code.co_flags & inspect.CO_OPTIMIZED:  # in a function
            return compile_now(model, **options)
        compiled = functools.cache(lambda: compile_now(model, **options))

        @functools.wraps(model)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (model if torch.compiler.is_compiling() else compiled())(*args, **kwargs)

        return call

    return compile_later


def _module(usual: Callable[..., Any], thing: Any, filename: str | None = None) -> Any:
    """Return the module of a frame by its name. inspect.getmodule would look for the files of all modules. PyTorch asks
    it for the frame that defines an operator."""
    return sys.modules.get(thing.f_globals["__name__"]) if inspect.isframe(thing) else usual(thing, filename)


def _cache(usual: Callable[..., Any], maxsize: Any = 128, typed: bool = False) -> Any:
    """Return functools.lru_cache, without a limit for transformers. With 128 entries it reads 1,500 files twice."""
    is_limited = getattr(maxsize, "__module__", "") == "transformers.utils.import_utils"
    return functools.cache(maxsize) if is_limited else usual(maxsize, typed)


class _Distributions(Mapping[str, list[str]]):
    """The distributions of each package. metadata.packages_distributions reads the list of files of each distribution;
    it is called only for a package without a distribution of its name."""

    def __init__(self, usual: Callable[[], Mapping[str, list[str]]]) -> None:
        self._all = functools.cache(usual)

    def __getitem__(self, package: str) -> list[str]:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return [metadata.distribution(package).name]
        return self._all()[package]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())
