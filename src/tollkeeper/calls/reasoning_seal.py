"""Seals the reasoning of an answer. The client keeps it and sends it back with its next message,
and it's unsealed only for the same project."""

import base64
import binascii
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from tollkeeper.core.access import ProjectCaller
from tollkeeper.core.catalog import Model
from tollkeeper.core.runtime.vault import Vault

# The option of models whose backend seals reasoning itself. A Responses client also puts this into
# `include` to ask for it.
ENCRYPTED_REASONING = "reasoning.encrypted_content"
_PURPOSE = "reasoning"

# Takes the text and the parts that the backend has sealed.
Sealer: TypeAlias = Callable[[str, tuple[str, ...]], str]


class KeptReasoning(msgspec.Struct, frozen=True, array_like=True):
    text: str
    model: str
    sealed_by_backend: tuple[str, ...] = ()

    def sealed_for(self, model: Model) -> tuple[str, ...]:
        """Empty unless they come from this model and it takes them back."""
        accepts = ENCRYPTED_REASONING in model.options and self.model == model.id
        return self.sealed_by_backend if accepts else ()


_decoder = msgspec.json.Decoder(KeptReasoning)


class ReasoningSeal:
    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def seal(self, caller: ProjectCaller, kept: KeptReasoning) -> str:
        sealed = self._vault.seal(msgspec.json.encode(kept), _PURPOSE, *_context(caller))
        return base64.urlsafe_b64encode(sealed).decode()

    def sealer(self, caller: ProjectCaller, model: Model) -> Sealer:
        def seal(text: str, sealed_by_backend: tuple[str, ...]) -> str:
            return self.seal(caller, KeptReasoning(text, model.id, sealed_by_backend))

        return seal

    def unseal(self, caller: ProjectCaller, sealed: str) -> KeptReasoning | None:
        """None if another installation or project sealed it, or the text was changed."""
        try:
            encrypted = base64.b64decode(sealed, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        plain = self._vault.unseal(encrypted, _PURPOSE, *_context(caller))
        try:
            return None if plain is None else _decoder.decode(plain)
        except msgspec.DecodeError:
            return None  # an earlier release sealed it in another format


def _context(caller: ProjectCaller) -> tuple[bytes, bytes]:
    return caller.organization_id.bytes, caller.project_id.bytes
