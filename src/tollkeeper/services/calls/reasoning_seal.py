"""Seals (encrypts) the reasoning of an answer. The client stores the sealed reasoning and sends it
back with the next message of the conversation. The gateway unseals it only for calls of the same
project."""

import base64
import binascii
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from tollkeeper.domain.access import ProjectCaller
from tollkeeper.domain.catalog import Model
from tollkeeper.services.vault import Vault

# The option of models whose backend seals reasoning itself and accepts it back. A Responses client
# also puts this value into `include` to ask for sealed reasoning.
ENCRYPTED_REASONING = "reasoning.encrypted_content"
_PURPOSE = "reasoning"

# Seals reasoning. The arguments are its text, and the parts that the backend has sealed.
Sealer: TypeAlias = Callable[[str, tuple[str, ...]], str]


class KeptReasoning(msgspec.Struct, frozen=True, array_like=True):
    """Contains the reasoning of an answer: its text, the id of its model, and parts that the
    model's backend has sealed."""

    text: str
    model: str
    sealed_by_backend: tuple[str, ...] = ()

    def sealed_for(self, model: Model) -> tuple[str, ...]:
        """Returns the parts that the backend has sealed, if they come from this model and the model
        accepts them back; otherwise an empty tuple."""
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
        """Returns the reasoning, or None if another installation or another project sealed it, or
        if the text was changed."""
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
