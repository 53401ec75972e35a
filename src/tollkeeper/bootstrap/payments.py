"""Verifies the signatures of payment events with the provider's own library."""

import importlib
from collections.abc import Callable

from tollkeeper.bootstrap.secrets import read_source
from tollkeeper.settings import Settings, SettingsError

# The maximum age of an event's signature. Each repetition is signed again.
TOLERANCE_S = 300
_AT = ("payments", "webhook_secrets")


def signature_check(settings: Settings) -> Callable[[bytes, str], bool] | None:
    """Returns None if the settings have no secret. Raises SettingsError if a secret cannot be read
    or the library is not installed."""
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
