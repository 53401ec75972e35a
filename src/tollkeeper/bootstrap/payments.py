"""Verifies the signatures of payment events with the library of the payment provider, Stripe."""

import importlib
from collections.abc import Callable

from tollkeeper.bootstrap.secrets import read_source
from tollkeeper.settings import Settings, SettingsError

# The maximum age of an event's signature. If the provider sends an event again, it signs the event anew.
TOLERANCE_S = 300
_AT = ("payments", "webhook_secrets")


def signature_check(settings: Settings) -> Callable[[bytes, str], bool] | None:
    """Returns a function that takes the body and the signature header of an event, and tells whether the
    signature is valid. Returns None if the settings contain no secret. Raises SettingsError if a secret
    cannot be read or the library is not installed."""
    sources = settings.payments.webhook_secrets
    if not sources:
        return None
    secrets = [_text(read_source(source, _AT)) for source in sources]
    try:
        stripe = importlib.import_module("stripe")
    except ImportError:
        raise SettingsError("needs stripe: pip install 'tollkeeper[payments]'.", _AT) from None

    def is_signed(body: bytes, header: str) -> bool:
        return any(_has_signature(secret, body, header) for secret in secrets)

    def _has_signature(secret: str, body: bytes, header: str) -> bool:
        try:
            stripe.WebhookSignature.verify_header(body, header, secret, TOLERANCE_S)
        except (stripe.SignatureVerificationError, UnicodeError):
            return False
        return True

    return is_signed


def _text(secret: bytes) -> str:
    text = secret.decode("ascii", "replace")
    if not text.startswith("whsec_"):
        raise SettingsError("a webhook secret begins with whsec_.", _AT)
    return text
