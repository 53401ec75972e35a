"""Converts the names of functions in `namespace` tools, which are named groups of functions.

A prompt has no groups. The model sees each function of a namespace under a flat name, which contains
the name of the namespace. If the model calls the function, the client gets the function's own name and
the name of the namespace.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

_SEPARATOR = "__"
# The maximum length of a function's name that the known providers accept.
_NAME_LENGTH_MAX = 64
_DIGEST_LENGTH = 8


@dataclass(frozen=True, slots=True)
class QualifiedName:
    name: str
    namespace: str


# The functions of all namespaces, by their flat names.
FlatNames = Mapping[str, QualifiedName]


def flat_name(namespace: str, name: str) -> str:
    """Returns the name that the model sees. The result depends only on the arguments, so that a function
    has the same name in earlier calls, which clients send back, and in the tools of the request. If the
    name would be too long, its end is replaced by a digest of the whole name."""
    flat = f"{namespace}{_SEPARATOR}{name}"
    if len(flat) <= _NAME_LENGTH_MAX:
        return flat
    digest = hashlib.sha256(flat.encode(errors="surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    return f"{flat[: _NAME_LENGTH_MAX - _DIGEST_LENGTH - 1]}_{digest}"
