"""How a type is written, as in the body of a class: ``int``, ``UUID``, ``list[int]``, ``Decimal | None``."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, NewType, get_args, get_origin

LONGEST: Final = 40  # characters; what is longer says less than its place in the source
_MODULE: Final = re.compile(r"\b(?:\w+\.)+(?=\w)")
_PLAIN: Final = re.compile(r"[\w\[\], |]+")


def briefly(annotation: Any) -> str | None:
    """The type by its name, without modules and what is annotated to it; None where that is long, or holds values."""
    if get_origin(annotation) is Annotated:
        return briefly(get_args(annotation)[0])
    if isinstance(annotation, NewType):
        return briefly(annotation.__supertype__)
    whole = annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
    name = _MODULE.sub("", whole)
    return name if len(name) <= LONGEST and _PLAIN.fullmatch(name) else None
