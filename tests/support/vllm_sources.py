"""A source of vLLM that has exactly the names that voxbatch uses, made from voxbatch's own list."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from voxbatch.vllm_plugin.vllm_names import ARGUMENTS, NAMES, SIGNATURES


def write(folder: Path) -> Path:
    """Write the package `vllm` into a folder, and return the folder. Only the names are real: no code works."""
    methods: dict[str, dict[str, str]] = defaultdict(dict)
    functions: dict[str, str] = {}
    given = {name: f"({', '.join(text.split())})" for name, text in ARGUMENTS.items()}
    for name, parameters in {**SIGNATURES, **given}.items():
        owner, _, method = name.partition(":")[2].partition(".")
        if method:
            methods[name.removesuffix(f".{method}")][method] = parameters
        elif owner[0].isupper():
            methods[name]["__init__"] = parameters
        else:
            functions[name] = parameters
    modules: dict[str, list[str]] = defaultdict(list)
    for name in sorted({*NAMES, *methods, *functions}, key=_bases_first):
        module, _, wanted = name.partition(":")
        if wanted[0].islower():
            modules[module].append(f"def {wanted}{functions.get(name, '()')}: ...")
            continue
        bases = {text.partition("(")[0] for text in methods[name].values()} - {""}
        origins = {owner.partition(":")[2]: owner.partition(":")[0] for owner in methods}
        modules[module] += [f"from {origins[base]} import {base}" for base in bases]
        members = NAMES[name].members.split() if name in NAMES else []
        lines = [f"{member} = None" for member in members if member not in methods[name]]
        lines += [
            f"def {method}(self, {text[1:]}: ..." for method, text in methods[name].items() if text.startswith("(")
        ]
        modules[module].append(f"class {wanted}({', '.join(bases)}):\n    " + "\n    ".join(lines or ["pass"]))
    for module, texts in modules.items():
        is_package = any(each.startswith(f"{module}.") for each in modules)
        path = folder.joinpath(*module.split("."))
        path = path / "__init__.py" if is_package else path.with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(texts) + "\n")
    (folder / "vllm" / "__init__.py").touch()
    return folder


def _bases_first(name: str) -> tuple[bool, str]:
    return "async" in name, name
