"""HTML and SVG as trees of elements: text is escaped by the serialiser, never by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from xml.etree.ElementTree import Element, tostring

Child = Element | str | None


def tag(name: str, /, *children: Child, **attributes: object) -> Element:
    """An element. Underscores in attribute names become dashes, a trailing one goes."""
    named = {key.rstrip("_").replace("_", "-"): str(value) for key, value in attributes.items()}
    node = Element(name, named)
    for child in children:
        if isinstance(child, str):
            _append_text(node, child)
        elif child is not None:
            node.append(child)
    return node


def _append_text(node: Element, text: str) -> None:
    if len(node):
        node[-1].tail = (node[-1].tail or "") + text
    else:
        node.text = (node.text or "") + text


def table(head: Sequence[str], rows: Iterable[Sequence[Child]]) -> Element:
    """A table; the first column names the row."""
    top = tag("tr", *(tag("th", title, scope="col") for title in head))
    body = [
        tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:]))
        for row in rows
    ]
    return tag("table", tag("thead", top), tag("tbody", *body))


def serialise(root: Element) -> str:
    """The document as text."""
    return "<!doctype html>\n" + tostring(root, encoding="unicode", method="html") + "\n"


def number(value: float | None) -> str:
    """Four significant digits, a dash for what is not known."""
    return "—" if value is None else f"{value:.4g}"
