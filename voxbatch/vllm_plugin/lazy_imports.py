"""Import vLLM without the modules that a batch job never uses, and without its searches through all packages.

vLLM's import takes half of a start. A third of its time, a quarter of its modules and two thirds of its calls of the
file system serve training, object detection, compilers and tracing. Nothing is taken away but tracing: a module is
loaded, and a function compiled, when it is first used.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.abc
import inspect
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

from voxbatch.vllm_plugin import vllm_version

LAZY: dict[str, tuple[str, ...]] = {
    "networkx": ("DiGraph",),
    "scipy.optimize": ("linear_sum_assignment",),
    "scipy.signal": (),
    "torch._inductor.compile_fx": (),
    "torch.utils.cpp_extension": ("load_inline",),  # brings setuptools
}
"""Modules that are loaded when they are first used, and those of their names that other modules take during their own
import, to call them later or for an annotation."""
REFUSED = {"torch._inductor.lowering": "vllm.env_override", "opentelemetry": "vllm.tracing.otel"}
"""Module → module of vLLM that can do without it, as if it were not installed."""


@contextlib.contextmanager
def lazily() -> Iterator[None]:
    """Import vLLM within this context. Another version of vLLM, or one that is imported already, is left as it is."""
    _, version = vllm_version.find() or ("", "")
    if "vllm" in sys.modules or not vllm_version.is_proven(version):
        yield
        return
    finder, getmodule, distributions = _Finder(), inspect.getmodule, metadata.packages_distributions
    inspect.getmodule = functools.partial(_module, getmodule)
    metadata.packages_distributions = functools.partial(_Distributions, distributions)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        finder.actions = {name: _ACTIONS[name] for name in REFUSED if name in _ACTIONS}
        inspect.getmodule, metadata.packages_distributions = getmodule, distributions
        if torch := sys.modules.get("torch"):
            torch.compile = inspect.unwrap(torch.compile)  # type: ignore[attr-defined]


class _Finder(importlib.abc.MetaPathFinder):
    """Gives the modules of `_ACTIONS` a loader that does more, or less, than their own."""

    def __init__(self) -> None:
        self.actions = _ACTIONS

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name in REFUSED:
            package, _, importer = REFUSED[name].rpartition(".")
            if REFUSED[name] in sys.modules and importer not in vars(sys.modules[package]):  # its import goes on
                raise ImportError(f"{name} is not needed here", name=name)
        spec = PathFinder.find_spec(name, path, target) if name in self.actions else None
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.actions[name])
        return spec


class _Loader(importlib.abc.Loader):
    """A loader that gives a new module, and the function that runs its code, to an action."""

    def __init__(self, loader: importlib.abc.Loader, action: Callable[[Any, Callable[[Any], None]], None]) -> None:
        self._loader, self._action = loader, action

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__.loader = module.__loader__ = self._loader
        self._action(module, self._loader.exec_module)


def _run_at_first_use(module: Any, run: Callable[[Any], None]) -> None:
    """Run a module's code when an attribute is first asked for. importlib.util.LazyLoader runs it also for __path__ and
    __file__, which `from module import name` and inspect ask of every module."""
    lock, is_begun = threading.RLock(), threading.Event()

    def load(name: str) -> Any:
        if name == "__path__":
            raise AttributeError(name)
        with lock:
            if not is_begun.is_set():
                is_begun.set()
                run(module)
        if name not in vars(module) and module.__getattr__ is load:
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        return getattr(module, name)

    module.__getattr__ = load
    for name in LAZY[module.__name__]:
        setattr(module, name, type(name, (), {"__new__": lambda _, *args, _name=name, **kw: load(_name)(*args, **kw)}))


def _compile_at_first_call(module: Any, run: Callable[[Any], None]) -> None:
    """Run torch's code, and let torch.compile, as a decorator in the body of a module or class, compile a function when
    it is first called."""
    run(module)
    compile_now = module.compile

    @functools.wraps(compile_now)
    def compile_later(model: Any = None, **options: Any) -> Any:
        if model is None:
            return functools.partial(compile_later, **options)
        if not inspect.isfunction(model) or sys._getframe(1).f_code.co_flags & inspect.CO_OPTIMIZED:  # in a function
            return compile_now(model, **options)
        compiled = functools.cache(lambda: compile_now(model, **options))

        @functools.wraps(model)
        def call(*args: Any, **kwargs: Any) -> Any:
            return (model if module.compiler.is_compiling() else compiled())(*args, **kwargs)

        return call

    module.compile = compile_later


def _read_once(module: Any, run: Callable[[Any], None]) -> None:
    """Run transformers' code, and keep which names each file of its models defines. transformers reads all of these
    files twice, because its own cache is too small."""
    run(module)
    if read := getattr(module, "create_import_structure_from_path", None):
        module.create_import_structure_from_path = functools.cache(inspect.unwrap(read))


def _patch_fallbacks(module: Any, run: Callable[[Any], None]) -> None:
    """Run the module's code, and then vLLM's patch of it, which had none to patch (REFUSED)."""
    run(module)
    sys.modules["vllm.env_override"]._patch_inductor_fallback_allow_list()


_ACTIONS: dict[str, Callable[[Any, Callable[[Any], None]], None]] = {
    **dict.fromkeys(LAZY, _run_at_first_use),
    "torch": _compile_at_first_call,
    "transformers.utils.import_utils": _read_once,
    "torch._inductor.lowering": _patch_fallbacks,
}


def _module(getmodule: Callable[..., Any], thing: Any, filename: str | None = None) -> Any:
    """Return the module of a frame by its name, and that of all else by inspect.getmodule, which would look for the
    file of each module. PyTorch asks for the frame that defines an operator."""
    if inspect.isframe(thing):
        return sys.modules.get(thing.f_globals.get("__name__", ""))
    return getmodule(thing, filename)


class _Distributions(Mapping[str, list[str]]):
    """The distributions of each package, as by metadata.packages_distributions. That function reads the list of files
    of every distribution; it is called only for a package without a distribution of the same name."""

    def __init__(self, distributions: Callable[[], Mapping[str, list[str]]]) -> None:
        self._all = functools.cache(distributions)

    def __getitem__(self, package: str) -> list[str]:
        with contextlib.suppress(metadata.PackageNotFoundError, ValueError):
            return [metadata.distribution(package).name]
        return self._all()[package]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())
