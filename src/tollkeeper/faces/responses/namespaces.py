"""Names of functions in `namespace` tools.

A prompt has no groups, so the model sees a flat name that includes the namespace. If it calls the
function, the client gets both names apart.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

_SEPARATOR = "__"
# What the known providers accept.
_NAME_LENGTH_MAX = 64
_DIGEST_LENGTH = 8


@dataclass(frozen=True, slots=True)
class QualifiedName:
    name: str
    namespace: str


# By their flat names.
FlatNames = Mapping[str, QualifiedName]


def flat_name(namespace: str, name: str) -> str:
    """Depends only on the arguments, so a function has the same name in the tools and in the
    earlier calls that clients send back. The end of a name that's too long becomes a digest of the
    whole name."""
    flat = f"{namespace}{_SEPARATOR}{name}"
    if len(flat) <= _NAME_LENGTH_MAX:
        return flat
    digest = hashlib.sha256(flat.encode(errors="surrogatepass")).hexdigest()[:_DIGEST_LENGTH]
    return f"{flat[: _NAME_LENGTH_MAX - _DIGEST_LENGTH - 1]}_{digest}"
