"""Verifies the signatures of payment events with Stripe's library."""

import importlib
from collections.abc import Callable

from tollkeeper.setup.secrets import read_source
from tollkeeper.setup.settings import Place, Settings, SettingsError

# An event that is sent again is signed anew.
TOLERANCE_S = 300
_LIVE = ("payments", "webhook_secrets", "live")
_TEST = ("payments", "webhook_secrets", "test")


def signature_check(settings: Settings) -> Callable[[bytes, str], bool | None] | None:
    """A function of an event's body and signature header: the `livemode` of the secret that signed it, None
    if the signature is wrong. None instead of a function if there is no secret. Raises SettingsError if one
    can't be read or the library isn't installed."""
    sources = settings.payments.webhook_secrets
    live = [_secret(source, _LIVE) for source in sources.live]
    test = [_secret(source, _TEST) for source in sources.test]
    if not live and not test:
        return None
    if not set(live).isdisjoint(test):
        raise SettingsError("the test mode needs its own secret.", _TEST)
    try:
        stripe = importlib.import_module("stripe")
    except ImportError:
        at = _LIVE if live else _TEST
        raise SettingsError("needs stripe: pip install 'tollkeeper[payments]'.", at) from None

    def find_livemode(body: bytes, header: str) -> bool | None:
        # The library raises a TypeError for any other text.
        if not header.isascii():
            return None
        for livemode, secrets in ((True, live), (False, test)):
            if any(_has_signature(secret, body, header) for secret in secrets):
                return livemode
        return None

    def _has_signature(secret: str, body: bytes, header: str) -> bool:
        try:
            stripe.WebhookSignature.verify_header(body, header, secret, TOLERANCE_S)
        except (stripe.SignatureVerificationError, UnicodeError):
            return False
        return True

    return find_livemode


def _secret(source: str, at: Place) -> str:
    text = read_source(source, at).decode("ascii", "replace")
    if not text.startswith("whsec_"):
        raise SettingsError("a webhook secret begins with whsec_.", at)
    return text
