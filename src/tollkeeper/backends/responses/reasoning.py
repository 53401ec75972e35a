"""Encodes the encrypted reasoning of earlier answers in Responses requests.

The provider encrypts the reasoning of an item together with the id of the item, and rejects the
encrypted value in an item with another id. The gateway sends both to clients as one sealed value: the id
and the encrypted value as a JSON text.
"""

from collections.abc import Iterator

import msgspec

from tollkeeper.domain.prompt import FreeObject, Reasoning


class _EncryptedItem(msgspec.Struct, omit_defaults=True):
    encrypted_content: str
    id: str | None = None


# Encrypted values are base64, which has no colon. Sealed values of Gemini backends begin with `gemini:`.
_NEVER_ENCRYPTED = ":"
_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(_EncryptedItem)


def sealed_item(item_id: str | None, encrypted_content: str) -> str:
    """Encodes the encrypted reasoning of an item as one text, which a client can store and send back."""
    return _encode(_EncryptedItem(encrypted_content, item_id)).decode()


def encrypted_fields(reasoning: Reasoning) -> Iterator[FreeObject]:
    """Yields the id and the encrypted value of each item of earlier reasoning. Omits values that a
    backend of another protocol created."""
    for sealed in reasoning.sealed:
        try:
            item = _decoder.decode(sealed)
        except msgspec.ValidationError:
            continue
        except msgspec.DecodeError:
            if _NEVER_ENCRYPTED in sealed:
                continue
            # Earlier releases sealed only the encrypted value. Without an id, the provider takes the id
            # from the encrypted value.
            item = _EncryptedItem(sealed)
        yield msgspec.to_builtins(item)
