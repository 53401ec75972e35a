"""Reasoning that callers keep for us between turns: readable by their own project's calls only."""

import base64
import binascii

import msgspec

from tollkeeper.domain.access import ProjectCaller
from tollkeeper.services.vault import Vault

_PURPOSE = "reasoning"


class KeptReasoning(msgspec.Struct, frozen=True, array_like=True):
    """What an answer thought, in words, and in whatever only the backend of its model can read."""

    text: str
    model: str
    sealed_by_backend: tuple[str, ...] = ()


_kept = msgspec.json.Decoder(KeptReasoning)


class ReasoningSeal:
    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def seal(self, caller: ProjectCaller, kept: KeptReasoning) -> str:
        sealed = self._vault.seal(msgspec.json.encode(kept), _PURPOSE, *_context(caller))
        return base64.urlsafe_b64encode(sealed).decode()

    def unseal(self, caller: ProjectCaller, sealed: str) -> KeptReasoning | None:
        """None where it is not ours: another service's, another project's, or changed on the way."""
        try:
            found = base64.b64decode(sealed, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        plain = self._vault.unseal(found, _PURPOSE, *_context(caller))
        try:
            return None if plain is None else _kept.decode(plain)
        except msgspec.DecodeError:
            return None  # Ours, but of an earlier form.


def _context(caller: ProjectCaller) -> tuple[bytes, bytes]:
    return caller.organization_id.bytes, caller.project_id.bytes
