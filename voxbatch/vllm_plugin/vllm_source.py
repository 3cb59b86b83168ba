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
        module, _, member = name.partition(":")
        return any(member in _bound(statement) for statement in self._statements(module))

    def members(self, name: str) -> set[str]:
        """Return the names of a class's methods, fields and attributes, with those of its bases within the package.

        An attribute is a name that a method assigns to `self`.

        Args:
            name: module:class.
        """
        names = set[str]()
        for _, node in self._with_bases(name):
            for statement in _flat(node.body):
                names |= _bound(statement)
                if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                    for target in (target for inner in ast.walk(statement) for target in _targets(inner)):
                        match target:
                            case ast.Attribute(value=ast.Name(id="self"), attr=attribute):
                                names.add(attribute)
        return names

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
            definition = self._definition(f"{module}:{owner}")
            return "" if definition is None else _parameters(definition[1])
        for _, node in self._with_bases(f"{module}:{owner}"):
            for statement in node.body:
                if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef) and statement.name == method:
                    return f"{'' if node.name == owner else node.name}{_parameters(statement, is_method=True)}"
        return ""

    def _with_bases(self, name: str) -> Iterator[tuple[str, ast.ClassDef]]:
        """Yield a class and its bases within the package, each with its module; nothing for other names."""
        definition = self._definition(name)
        if definition is None or not isinstance(node := definition[1], ast.ClassDef):
            return
        module = definition[0]
        yield module, node
        for base in node.bases:
            if isinstance(base, ast.Name):
                yield from self._with_bases(f"{module}:{base.id}")

    def _definition(self, name: str) -> tuple[str, Definition] | None:
        """Return the module that defines a name, and the definition, through the imports in between."""
        module, _, member = name.partition(":")
        for _ in range(MAX_IMPORTS):
            origin = original = ""
            for statement in self._statements(module):
                if isinstance(statement, Definition) and statement.name == member:
                    return module, statement
                if isinstance(statement, ast.ImportFrom):
                    imported = {alias.asname or alias.name: alias.name for alias in statement.names}
                    if member in imported:
                        origin, original = self._origin(module, statement), imported[member]
            if not origin:
                return None
            module, member = origin, original
        return None

    def _origin(self, module: str, statement: ast.ImportFrom) -> str:
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
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))).parent


def _flat(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in statements:
        yield statement
        if isinstance(statement, ast.If | ast.Try):
            yield from _flat(statement.body)
            yield from _flat(statement.orelse)
        if isinstance(statement, ast.Try):
            yield from _flat(statement for handler in statement.handlers for statement in handler.body)


def _bound(statement: ast.stmt) -> set[str]:
    if isinstance(statement, Definition):
        return {statement.name}
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return {alias.asname or alias.name for alias in statement.names}
    return {target.id for target in _targets(statement) if isinstance(target, ast.Name)}


def _targets(statement: ast.AST) -> Iterator[ast.expr]:
    """Yield what a statement assigns to."""
    if isinstance(statement, ast.Assign):
        for target in statement.targets:
            yield from target.elts if isinstance(target, ast.Tuple) else [target]
    elif isinstance(statement, ast.AnnAssign):
        yield statement.target


def _parameters(node: Definition, is_method: bool = False) -> str:
    if isinstance(node, ast.ClassDef):
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
                return _parameters(statement, is_method=True)
        fields = [
            statement for statement in node.body if isinstance(statement, ast.AnnAssign) and statement.value is None
        ]
        return f"({', '.join(field.target.id for field in fields if isinstance(field.target, ast.Name))})"
    arguments = node.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args)]
    if is_method and not any(
        isinstance(decorator, ast.Name) and decorator.id == "staticmethod" for decorator in node.decorator_list
    ):
        names = names[1:]
    if arguments.vararg:
        names.append(f"*{arguments.vararg.arg}")
    names += [argument.arg for argument in arguments.kwonlyargs]
    if arguments.kwarg:
        names.append(f"**{arguments.kwarg.arg}")
    return f"({', '.join(names)})"
