"""Every argument of everything on the API pages is documented, in the Google style that mkdocstrings reads."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_docs import members, resolve

PAGES = Path(__file__).parents[1] / "docs/api"
_ENTRY = re.compile(r"(?m)^::: (\S+)\n((?: +\S.*\n)*)")
_SECTION = r"(?m)^{}:\n((?:(?: .*)?\n)+)"
#: Left out by the filters in mkdocs.yml.
_HIDDEN = {"extra_repr"}


def entries() -> list[tuple[str, dict[str, Any]]]:
    """The names on the API pages, each with its options."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted(PAGES.glob("*.md")))
    return [(name, (yaml.safe_load(block) or {}).get("options", {})) for name, block in _ENTRY.findall(f"{text}\n")]


def documented(doc: str, section: str) -> list[str]:
    """The names in a section of a docstring: ``name: text`` or ``name (type): text``, one at a time."""
    found = re.search(_SECTION.format(section), f"{inspect.cleandoc(doc)}\n")
    return re.findall(r"(?m)^    \*{0,2}(\w+)(?: \([^)]*\))?:(?: |$)", found[1]) if found else []


def arguments(function: Callable[..., Any]) -> list[str]:
    """What a caller passes: no ``self``, nothing private."""
    names = list(inspect.signature(function).parameters)
    return [name for name in names if name != "self" and not name.startswith("_")]


def constructor(cls: type) -> type | None:
    """The class that says how ``cls`` is made, if it is ours: ``cls`` itself, or one that it inherits from."""
    makers = ("__init__", "__new__", "_fields", "__pydantic_fields__")
    home = next(base for base in cls.__mro__ if any(name in vars(base) for name in makers))
    return home if home.__module__.startswith("sepnorm.") and not getattr(cls, "_is_protocol", False) else None


def faults(name: str, found: Any, options: dict[str, Any]) -> list[str]:
    """Arguments that are not documented, and documented ones that do not exist."""
    if not inspect.isclass(found):
        return _faults(name, found, found.__doc__) if inspect.isfunction(found) else []
    home = constructor(found)
    faulty = _faults(name, found, found.__doc__, found.__init__.__doc__, home.__doc__) if home else []
    for member in [*(options.get("members", members(found)) or []), *options.get("inherited_members", [])]:
        value = inspect.getattr_static(found, member)
        if member not in _HIDDEN and (inspect.isfunction(value) or isinstance(value, staticmethod | classmethod)):
            method = getattr(found, member)
            faulty += _faults(f"{name}.{member}", method, inspect.getdoc(method))
    return faulty


def _faults(name: str, function: Callable[..., Any], *docs: str | None) -> list[str]:
    wanted = arguments(function)
    args = [each for doc in dict.fromkeys(docs) for each in documented(doc or "", "Args")]
    known = {*args, *(each for doc in docs for each in documented(doc or "", "Attributes"))}
    missing = [f"{name}: {each} is not documented" for each in wanted if each not in known]
    return missing + [f"{name}: there is no argument {each}" for each in args if each not in wanted]


@pytest.mark.parametrize(("name", "options"), entries(), ids=[name for name, _ in entries()])
def test_every_argument_is_documented(name, options):
    found = faults(name, resolve(name), options)
    assert not found, "\n".join(found)


class Example:
    """One.

    Args:
        first: a number,
            on two lines: with a colon.
        gone: no longer an argument.

    Returns:
        nothing: at all.
    """

    def __init__(self, first: int, second: int, _third: int = 0) -> None: ...

    def method(self, x: int) -> None:
        """Two."""


def test_faults_are_found(monkeypatch):
    monkeypatch.setattr(Example, "__module__", "sepnorm.example")
    assert faults("e", Example, {}) == [
        "e: second is not documented",
        "e: there is no argument gone",
        "e.method: x is not documented",
    ]
    assert faults("e", Example, {"members": False}) == ["e: second is not documented", "e: there is no argument gone"]
