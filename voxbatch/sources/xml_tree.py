"""Parse the XML of others. Documents that declare entities are refused, because these may expand without end, or name
files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape, unescape
from xml.etree import ElementTree as ET
from xml.etree.ElementTree import Element

_ENTITY = re.compile(r"&(?!amp;|lt;|gt;|quot;|apos;|#)(\w+;)")
"""The names of HTML (&nbsp;), which many programs write although XML does not have them."""


class DeclaresEntities(ValueError):
    """A document of XML declares entities."""


def parsed(document: str | bytes) -> Element:
    """Return the root of a document.

    Raises:
        DeclaresEntities: it declares entities.
        ET.ParseError: it is no XML.
    """
    if ("<!ENTITY" if isinstance(document, str) else b"<!ENTITY") in document:  # type: ignore[operator] # both are one
        raise DeclaresEntities
    return ET.fromstring(document)  # noqa: S314 -- it declares no entities


def xml_root(document: str) -> Element:
    """Return the root of a transcript. The entities of HTML in it are characters.

    Raises:
        ValueError: the document is no XML, or declares entities.
    """
    try:
        return parsed(_ENTITY.sub(lambda entity: escape(unescape(entity[0])), document.lstrip("\ufeff \r\n\t")))
    except DeclaresEntities as error:
        raise ValueError("it declares entities of XML, which are not read; write the text itself") from error
    except ET.ParseError as error:
        raise ValueError(f"it is no XML: {error}; write the file again") from error


def local_name(element: Element) -> str:
    """Return the name of an element without its namespace."""
    return local(element.tag)


def local(name: str) -> str:
    """Return a name without its namespace: "{http://www.w3.org/ns/ttml}p" → "p"."""
    return name.rpartition("}")[2]


def elements(root: Element, name: str) -> Iterator[Element]:
    """Yield the elements of a name, in any namespace."""
    return (element for element in root.iter() if local_name(element) == name)


def attribute(element: Element, name: str) -> str | None:
    """Return an attribute by its name, in any namespace; None if the element has none."""
    return next((value for key, value in element.items() if local(key) == name), None)


def full_text(element: Element | None) -> str:
    """Return the text of an element and of all elements in it."""
    return "" if element is None else "".join(element.itertext())
