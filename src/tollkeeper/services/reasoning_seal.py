"""Reasoning that callers keep for us between turns: readable by their own project's calls only."""

import base64
import binascii

from tollkeeper.domain.access import CustomerCaller
from tollkeeper.services.vault import Vault

_PURPOSE = "reasoning"


class ReasoningSeal:
    def __init__(self, vault: Vault) -> None:
        self._vault = vault

    def seal(self, caller: CustomerCaller, text: str) -> str:
        sealed = self._vault.seal(text.encode(), _PURPOSE, *_context(caller))
        return base64.urlsafe_b64encode(sealed).decode()

    def unseal(self, caller: CustomerCaller, sealed: str) -> str | None:
        """None where it is not ours: another service's, another project's, or changed on the way."""
        try:
            found = base64.b64decode(sealed, altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            return None
        plain = self._vault.unseal(found, _PURPOSE, *_context(caller))
        return None if plain is None else plain.decode()


def _context(caller: CustomerCaller) -> tuple[bytes, bytes]:
    return caller.organization_id.bytes, caller.project_id.bytes
