"""CloudFormation's functions, as far as the templates in jobs use them.

A template and its parameters become the resources that a stack would have, and two such stacks a change set.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ABSENT = object()
"""The value of AWS::NoValue."""


class _Loader(yaml.SafeLoader):
    """A loader that reads !Ref, !Sub and so on as their long forms."""


def _long_form(loader: _Loader, suffix: str, node: yaml.Node) -> dict[str, Any]:
    if isinstance(node, yaml.ScalarNode):
        value: Any = loader.construct_scalar(node)
        if suffix == "GetAtt":
            value = value.split(".", 1)
    elif isinstance(node, yaml.SequenceNode):
        value = loader.construct_sequence(node, deep=True)
    else:
        raise AssertionError(node)
    return {suffix if suffix in {"Ref", "Condition"} else f"Fn::{suffix}": value}


_Loader.add_multi_constructor("!", _long_form)


def load(path: Path) -> Any:
    """Return a template with the long forms of all functions."""
    return yaml.load(path.read_text(), _Loader)


class InvalidStack(Exception):
    """Parameters that CloudFormation refuses."""


class Stack:
    """A template with the values of its parameters. `resources` and `metadata` have what exists, by logical name."""

    def __init__(self, template: Mapping[str, Any], given: Mapping[str, Any], pseudo: Mapping[str, str]):
        """Resolve a template.

        Raises:
            InvalidStack: a parameter does not fit, or an assertion of the rules does not hold.
        """
        assert given.keys() <= template["Parameters"].keys()
        defaults = {name: each["Default"] for name, each in template["Parameters"].items() if "Default" in each}
        self._template, self._values = template, {**pseudo, **defaults, **given}
        for name, parameter in template["Parameters"].items():
            if name not in self._values:
                raise InvalidStack(f"Parameters: [{name}] must have values")
            _check(name, str(self._values[name]), parameter)
            if parameter["Type"].startswith(("CommaDelimitedList", "List<")):
                self._values[name] = str(self._values[name]).split(",")
        for rule in template.get("Rules", {}).values():
            if self._resolve(rule.get("RuleCondition", {"Fn::Equals": ["", ""]})):
                for assertion in rule["Assertions"]:
                    if not self._resolve(assertion["Assert"]):
                        raise InvalidStack(f"Template constraint violated: {assertion['AssertDescription']}")
        self.resources = {
            name: (each["Type"], self._resolve(each["Properties"]))
            for name, each in template["Resources"].items()
            if "Condition" not in each or self._holds(each["Condition"])
        }
        bodies = template["Resources"]
        self.metadata = {name: self._resolve(bodies[name].get("Metadata", {})) for name in self.resources}

    def _holds(self, name: str) -> bool:
        return bool(self._resolve(self._template["Conditions"][name]))

    def _name(self, name: str) -> Any:
        """Return the value of a parameter, or what Ref gives for a resource: its name, else its logical name."""
        if name == "AWS::NoValue":
            return ABSENT
        if name in self._values:
            return self._values[name]
        properties = self._template["Resources"][name]["Properties"]
        kind = self._template["Resources"][name]["Type"].rpartition("::")[2]
        keys = [key for key in properties if key.endswith("Name") and key != "MetricName"]
        keys = [key for key in keys if len(keys) == 1 or key == f"{kind}Name"]
        return self._resolve(properties[keys[0]]) if keys else name

    def _resolve(self, node: Any) -> Any:
        if isinstance(node, list):
            return [each for each in map(self._resolve, node) if each is not ABSENT]
        if not isinstance(node, dict):
            return node
        if len(node) == 1:
            [(key, value)] = node.items()
            if key == "Ref":
                return self._name(value)
            if key == "Condition" and isinstance(value, str):
                return self._holds(value)
            if key.startswith("Fn::"):
                return self._function(key.removeprefix("Fn::"), value)
        found = {key: self._resolve(value) for key, value in node.items()}
        return {key: value for key, value in found.items() if value is not ABSENT}

    def _function(self, name: str, value: Any) -> Any:
        if name == "If":
            return self._resolve(value[1] if self._holds(value[0]) else value[2])
        if name == "GetAtt":
            resource, attribute = value
            return (
                self._name(resource) if attribute != "Arn" else f"arn:aws:iam::123456789012:role/{self._name(resource)}"
            )
        if name == "Sub":
            text, more = (value, {}) if isinstance(value, str) else value
            return self._substituted(text, {key: self._resolve(each) for key, each in more.items()})
        given = self._resolve(value)
        if name == "Join":
            return given[0].join(given[1])
        if name == "Select":
            return given[1][int(given[0])]
        if name == "Split":
            return given[1].split(given[0])
        if name == "Equals":
            return given[0] == given[1]
        if name == "Not":
            return not given[0]
        assert name in {"And", "Or"}, name
        return all(given) if name == "And" else any(given)

    def _substituted(self, text: str, more: Mapping[str, Any]) -> str:
        def value(match: re.Match[str]) -> str:
            name = match[1]
            if name.startswith("!"):
                return "${" + name[1:] + "}"
            return str(more[name] if name in more else self._name(name))

        return re.sub(r"\$\{([^}]+)\}", value, text)


def _check(name: str, value: str, parameter: Mapping[str, Any]) -> None:
    """Raise InvalidStack as CloudFormation refuses a parameter, by its pattern, its list of values or its limits."""
    is_valid = bool(re.fullmatch(parameter.get("AllowedPattern", ".*"), value, re.DOTALL))
    is_valid &= value in parameter.get("AllowedValues", [value])
    if parameter["Type"] == "Number":
        if not value.isdigit():
            raise InvalidStack(f"Parameter '{name}' must be a number.")
        is_valid &= parameter.get("MinValue", 0) <= int(value) <= parameter.get("MaxValue", int(value))
    if not is_valid:
        said = parameter.get("ConstraintDescription", f"Member must satisfy the constraint, and is {value!r}")
        raise InvalidStack(f"Parameter {name} failed to satisfy constraint: {said}")


def changes(before: Stack | None, after: Stack) -> list[dict[str, str]]:
    """Return the changes of a change set, by logical name. AWS's schema of a resource says what replaces it."""
    old = before.resources if before else {}
    listed = []
    for name in sorted(old.keys() | after.resources.keys()):
        kind, properties = after.resources.get(name) or old[name]
        change = {"LogicalResourceId": name, "ResourceType": kind}
        if name not in old or name not in after.resources:
            listed.append({"Action": "Remove" if name in old else "Add", **change})
        elif before and (old[name], before.metadata[name]) != (after.resources[name], after.metadata[name]):
            fixed = [path.split("/")[2] for path in _schema(kind).get("createOnlyProperties", [])]
            is_replaced = any(old[name][1].get(key) != properties.get(key) for key in fixed)
            listed.append({"Action": "Modify", "Replacement": str(is_replaced), **change})
    return listed


def _schema(kind: str) -> dict[str, Any]:
    from cfnlint.schema.manager import PROVIDER_SCHEMA_MANAGER  # type: ignore[import-untyped]  # slow

    return dict(PROVIDER_SCHEMA_MANAGER.get_resource_schema("eu-central-1", kind).schema)
