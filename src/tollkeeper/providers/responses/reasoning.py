"""Encodes earlier answers' encrypted reasoning. The provider encrypts it together with its item's
id and rejects it under another, so the sealed value has both, as a JSON text."""

from collections.abc import Iterator

import msgspec

from tollkeeper.core.prompt import FreeObject, Reasoning


class _EncryptedItem(msgspec.Struct, omit_defaults=True):
    encrypted_content: str
    id: str | None = None


# Base64 has no colon. Gemini's sealed values begin with `gemini:`.
_NEVER_ENCRYPTED = ":"
_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(_EncryptedItem)


def sealed_item(item_id: str | None, encrypted_content: str) -> str:
    """Which clients can store and send back."""
    return _encode(_EncryptedItem(encrypted_content, item_id)).decode()


def encrypted_fields(reasoning: Reasoning) -> Iterator[FreeObject]:
    """Without values of other protocols' backends."""
    for sealed in reasoning.sealed:
        try:
            item = _decoder.decode(sealed)
        except msgspec.ValidationError:
            continue
        except msgspec.DecodeError:
            if _NEVER_ENCRYPTED in sealed:
                continue
            # From an earlier release, without the id, which the provider then takes
            # from the value.
            item = _EncryptedItem(sealed)
        yield msgspec.to_builtins(item)
