"""HTML that is escaped by construction: whatever is not already ``Markup`` is text."""

import json
from html import escape
from typing import Any


class Markup(str):
    """A piece of HTML; only ``element`` and ``joined`` make it out of texts."""

    __slots__ = ()


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element with its attributes and children; texts are escaped, ``None`` and ``False`` are left out.

    ``True`` is an attribute without a value; ``class_`` is "class", and ``aria_label`` is "aria-label".
    """
    shown = "".join(_attribute(key, value) for key, value in attributes.items())
    opening = f"<{name}{shown}>"
    return Markup(opening if name in _EMPTY else f"{opening}{joined(*children)}</{name}>")


_EMPTY = ("input", "meta", "br", "col")


def _attribute(key: str, value: object) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{escape(str(value))}"'


def joined(*children: object) -> Markup:
    return Markup("".join(_shown(child) for child in children if child is not None))


def _shown(child: object) -> str:
    if isinstance(child, Markup):
        return child
    if isinstance(child, list | tuple):
        return joined(*child)
    return escape(str(child), quote=False)


def json_script(name: str, document: Any) -> Markup:
    """Data for the page's script, as JSON that cannot end the element it stands in, whatever its texts are."""
    text = json.dumps(document, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return Markup(f'<script type="application/json" id="{escape(name)}">{text}</script>')
