"""Sends alerts to the operator's webhook, with a signature of the body."""

import asyncio
import hashlib
import hmac
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

from tollkeeper.reports.alerts.service import DeliveryFailed, PostAlert
from tollkeeper.setup.secrets import read_source
from tollkeeper.setup.settings import Settings, SettingsError

SIGNATURE_HEADER = "X-Tollkeeper-Signature"
DELIVERY_HEADER = "X-Tollkeeper-Delivery"
_SOCKET_TIMEOUT_S = 10.0
# Of a whole delivery. The socket timeout is for single reads and writes.
_DEADLINE_S = 30.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A signed body only goes to the configured address."""

    def redirect_request(self, *_: Any) -> None:
        return None


def alert_webhook(settings: Settings) -> PostAlert | None:
    """None without a webhook. Raises SettingsError if the secret can't be read."""
    webhook = settings.alerts.webhook
    if not webhook.url:
        return None
    secret = _secret(settings)
    opener = urllib.request.build_opener(_NoRedirect)

    async def post(delivery_id: str, body: str) -> None:
        request = _request(webhook.url, secret, delivery_id, body.encode())
        try:
            async with asyncio.timeout(_DEADLINE_S):
                await asyncio.to_thread(_send, opener, request)
        except TimeoutError:
            raise DeliveryFailed("the webhook did not answer in time") from None

    return post


def signature(secret: bytes, body: bytes, timestamp: int) -> str:
    """`t=<unix seconds>,v1=<hex>`, the HMAC-SHA256 of the seconds, a dot and the body."""
    signed = hmac.new(secret, b"%d." % timestamp + body, hashlib.sha256).hexdigest()
    return f"t={timestamp},v1={signed}"


def _request(url: str, secret: bytes, delivery_id: str, body: bytes) -> urllib.request.Request:
    headers = {
        "Content-Type": "application/json",
        DELIVERY_HEADER: delivery_id,
        SIGNATURE_HEADER: signature(secret, body, int(time.time())),
    }
    return urllib.request.Request(url, data=body, headers=headers, method="POST")  # noqa: S310


def _send(opener: urllib.request.OpenerDirector, request: urllib.request.Request) -> None:
    try:
        with opener.open(request, timeout=_SOCKET_TIMEOUT_S):
            return
    except urllib.error.HTTPError as exc:
        exc.close()
        raise DeliveryFailed(f"the webhook answered {exc.code}") from None
    except (OSError, HTTPException, ValueError) as exc:
        raise DeliveryFailed(f"the webhook cannot be reached: {type(exc).__name__}") from None


def _secret(settings: Settings) -> bytes:
    at = ("alerts", "webhook", "secret")
    source = settings.alerts.webhook.secret
    secret = read_source(source, at)
    if not secret:
        # `read_source` rejects an empty variable.
        raise SettingsError(f"{source.partition(':')[2]} is empty", at)
    return secret
