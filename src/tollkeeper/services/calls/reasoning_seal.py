"""Encrypts the reasoning that callers keep between turns. Only calls of the same project read it."""

import base64
import binascii

import msgspec

from tollkeeper.domain.access import ProjectCaller
from tollkeeper.services.vault import Vault

_PURPOSE = "reasoning"


class KeptReasoning(msgspec.Struct, frozen=True, array_like=True):
    """The reasoning of an answer: as text, and as the parts that only the model's backend can read."""

    text: str
    model: str
    sealed_by_backend: tuple[str, ...] = ()


_decoder = msgspec.json.Decoder(KeptReasoning)


class ReasoningSeal:
    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def seal(self, caller: ProjectCaller, kept: KeptReasoning) -> str:
        sealed = self._vault.seal(msgspec.json.encode(kept), _PURPOSE, *_context(caller))
        return base64.urlsafe_b64encode(sealed).decode()

    def unseal(self, caller: ProjectCaller, sealed: str) -> KeptReasoning | None:
        """None where another service or another project sealed it, or where it was changed."""
        try:
            encrypted = base64.b64decode(sealed, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        plain = self._vault.unseal(encrypted, _PURPOSE, *_context(caller))
        try:
            return None if plain is None else _decoder.decode(plain)
        except msgspec.DecodeError:
            return None  # An earlier release sealed it in another format.


def _context(caller: ProjectCaller) -> tuple[bytes, bytes]:
    return caller.organization_id.bytes, caller.project_id.bytes
