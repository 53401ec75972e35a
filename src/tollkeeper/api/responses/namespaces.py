"""Names functions that a `namespace` tool groups.

A prompt has functions only. The model sees a namespace's function under one flat name, and a call
of it is returned to the client with its own name and its namespace.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

_SEPARATOR = "__"
# The maximum length of a function's name at published backends.
_NAME_LENGTH_MAX = 64
_DIGEST_LENGTH = 8


@dataclass(frozen=True, slots=True)
class QualifiedName:
    name: str
    namespace: str


# The functions of namespaces by their flat names.
FlatNames = Mapping[str, QualifiedName]


def flat_name(namespace: str, name: str) -> str:
    """Returns the name that the model sees. The same names always give the same flat name, because
    clients send earlier calls back. A name that is too long ends with a digest of the whole."""
    flat = f"{namespace}{_SEPARATOR}{name}"
    if len(flat) <= _NAME_LENGTH_MAX:
        return flat
    digest = hashlib.sha256(flat.encode(errors="surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    return f"{flat[: _NAME_LENGTH_MAX - _DIGEST_LENGTH - 1]}_{digest}"
