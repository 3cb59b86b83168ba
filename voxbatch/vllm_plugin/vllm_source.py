"""Read the names, the members and the parameters of vLLM's classes and functions from its source, without importing it.

An import would take seconds and occupy the GPU. A file is parsed at most once, in some milliseconds.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Iterator
from pathlib import Path

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
MAX_IMPORTS = 8
"""Maximum number of modules through which one name is imported."""


class Source:
    """The source of an installed package."""

    def __init__(self, root: Path):
        """Prepare to read; nothing is read yet.

        Args:
            root: the folder that holds the package.
        """
        self._root = root
        self._modules: dict[str, list[ast.stmt]] = {}
        """The statements of each module that was read, with those inside `if` and `try` on its top level."""

    def has(self, name: str) -> bool:
        """Return whether a module binds a name.

        Args:
            name: module:name, as "vllm.config:CUDAGraphMode".
        """
        module, _, wanted = name.partition(":")
        return any(wanted in _bound(each) for each in self._statements(module))

    def members(self, name: str) -> set[str]:
        """Return the names of a class's methods, fields and attributes, with those of its bases within the package.

        An attribute is a name that a method assigns to `self`.

        Args:
            name: module:class.
        """
        return {member for _, each in self._with_bases(name) for member in _members(each)}

    def signature(self, name: str) -> str:
        """Return the parameters of a function, a method or a dataclass: "(request, num_new_tokens, **others)".

        A method's `self` is left out. An inherited method has the name of its class before the parameters. Of a class
        without `__init__`, these are the fields without a default. Empty for a name that does not exist.

        Args:
            name: module:function, module:class, or module:class.method.
        """
        module, _, path = name.partition(":")
        owner, _, method = path.partition(".")
        if not method:
            found = self._definition(f"{module}:{owner}")
            return "" if found is None else _parameters(found[1])
        for _, each in self._with_bases(f"{module}:{owner}"):
            for statement in each.body:
                if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name == method:
                    return f"{'' if each.name == owner else each.name}{_parameters(statement, is_method=True)}"
        return ""

    def _with_bases(self, name: str) -> Iterator[tuple[str, ast.ClassDef]]:
        """Yield a class and its bases within the package, each with its module; nothing for other names."""
        found = self._definition(name)
        if found is None or not isinstance(node := found[1], ast.ClassDef):
            return
        module = found[0]
        yield module, node
        for base in node.bases:
            if isinstance(base, ast.Name):
                yield from self._with_bases(f"{module}:{base.id}")

    def _definition(self, name: str) -> tuple[str, Definition] | None:
        """Return the module that defines a name, and the definition, through the imports in between."""
        module, _, wanted = name.partition(":")
        for _ in range(MAX_IMPORTS):
            origin = original = ""
            for each in self._statements(module):
                if isinstance(each, Definition) and each.name == wanted:
                    return module, each
                if isinstance(each, ast.ImportFrom):
                    imported = {alias.asname or alias.name: alias.name for alias in each.names}
                    if wanted in imported:
                        origin, original = self._origin(module, each), imported[wanted]
            if not origin:
                return None
            module, wanted = origin, original
        return None

    def _origin(self, module: str, statement: ast.ImportFrom) -> str:
        """Return the module that a statement of `module` imports from."""
        if not statement.level:
            return statement.module or ""
        parts = module.split(".") if self._path(module).name == "__init__.py" else module.split(".")[:-1]
        base = parts[: len(parts) - statement.level + 1]
        return ".".join([*base, *([statement.module] if statement.module else [])])

    def _statements(self, module: str) -> list[ast.stmt]:
        """Return the statements of a module; none if it cannot be read."""
        if module not in self._modules:
            try:
                self._modules[module] = [*_flat(ast.parse(self._path(module).read_bytes()).body)]
            except (OSError, SyntaxError):  # it does not exist, or is for a newer Python
                self._modules[module] = []
        return self._modules[module]

    def _path(self, module: str) -> Path:
        path = self._root.joinpath(*module.split("."))
        return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def installed(package: str) -> Path | None:
    """Return the folder that holds an installed package, or None if the package is not installed as a folder."""
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        return None
    return Path(next(iter(found.submodule_search_locations))).parent


def _flat(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for each in statements:
        yield each
        if isinstance(each, ast.If | ast.Try):
            yield from _flat(each.body)
            yield from _flat(each.orelse)
        if isinstance(each, ast.Try):
            yield from _flat(statement for handler in each.handlers for statement in handler.body)


def _bound(statement: ast.stmt) -> set[str]:
    """Return the names that a statement binds."""
    if isinstance(statement, Definition):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in statement.names}
    return {each.id for each in _targets(statement) if isinstance(each, ast.Name)}


def _targets(statement: ast.AST) -> Iterator[ast.expr]:
    """Yield what a statement assigns to."""
    if isinstance(statement, ast.Assign):
        for each in statement.targets:
            yield from each.elts if isinstance(each, ast.Tuple) else [each]
    elif isinstance(statement, ast.AnnAssign):
        yield statement.target


def _members(node: ast.ClassDef) -> Iterator[str]:
    for statement in _flat(node.body):
        yield from _bound(statement)
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            for inner in ast.walk(statement):
                yield from (
                    each.attr
                    for each in _targets(inner)
                    if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name) and each.value.id == "self"
                )


def _parameters(node: Definition, is_method: bool = False) -> str:
    if isinstance(node, ast.ClassDef):
        for each in node.body:
            if isinstance(each, ast.FunctionDef) and each.name == "__init__":
                return _parameters(each, is_method=True)
        fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and each.value is None]
        return f"({', '.join(each.target.id for each in fields if isinstance(each.target, ast.Name))})"
    arguments = node.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    if is_method and not any(isinstance(each, ast.Name) and each.id == "staticmethod" for each in node.decorator_list):
        names = names[1:]
    if arguments.vararg:
        names.append(f"*{arguments.vararg.arg}")
    names += [each.arg for each in arguments.kwonlyargs]
    if arguments.kwarg:
        names.append(f"**{arguments.kwarg.arg}")
    return f"({', '.join(names)})"
