"""Defines the notices that pages show after a change.

The URL contains only the key of a notice, so a malicious link cannot show any other text. An amount
in the URL needs a signature, which only the console can compute, with a secret of the session.
"""

import hmac
from collections.abc import Mapping

from tollkeeper.domain.money import usd_from_picousd

# The query parameters of a notice.
NOTICE_FIELDS = ("notice", "amount", "signature")
NOTICES = {
    "organization-created": "The organization was created.",
    "credit-granted": "{amount} was granted.",
    "credit-withdrawn": "{amount} was withdrawn.",
    "payment-assigned": "The payment is assigned: its credit is {amount}.",
    "payment-assigned-early": "The payment is assigned. It adds credit when it succeeds.",
    "cap-set": "The cap is set.",
    "cap-cleared": "The cap was removed.",
    "overage-set": "The overage bound is set.",
    "overage-cleared": "Calls of the organization are admitted again.",
    "check-granted": "The organization has the check now.",
    "check-revoked": "The organization no longer has the check.",
    "project-created": "The project was created.",
    "project-archived": "The project is archived: its keys admit no new calls.",
    "models-set": "The list of models is set.",
    "limits-set": "The limits are set.",
    "key-suspended": "The key is suspended.",
    "key-unsuspended": "The key is active again.",
    "key-revoked": "The key is revoked.",
    "settled": "The call is settled: {amount} was charged.",
    "released": "The call is released: {amount} of its hold was given back.",
    "all-settled": "The unsettled calls are settled: {amount} was charged.",
    "all-released": "The unsettled calls are released: {amount} was given back.",
    "verified": "The ledger was verified.",
    "policy-created": "The policy was created as a draft. Nothing is judged before it is published.",
    "policy-edited": "The draft was changed. The published version stays in force until you publish.",
    "policy-published": "The draft is published.",
    "policy-paused": "The policy is paused.",
    "policy-resumed": "The policy is in force again.",
    "renamed": "The name is changed.",
    "organization-archived": "The organization is archived: its keys admit no calls.",
    "calibration-saved": "The calibration is saved. It has no effect until you select it.",
    "calibrated": "The calibration in use is changed.",
    "recovered": "The holds of dead processes are marked as unsettled.",
    "month-closed": "The month is closed. Store a copy of its digest outside of this database.",
    "month-exported": "The month is marked as exported.",
    "month-dropped": "The rows of the month are dropped.",
    "signed-out": "You are signed out.",
    "sessions-ended": "All sessions of this person have ended.",
}


def notice_text(query: Mapping[str, str], secret: str) -> str | None:
    """Returns the notice that the URL's query names. Returns None if the query names no known
    notice, or if the signature of the amount is missing or wrong. `secret` is the session's form
    token."""
    name, amount = query.get("notice", ""), query.get("amount", "")
    text = NOTICES.get(name)
    if text is None or "{amount}" not in text:
        return text
    if not hmac.compare_digest(
        query.get("signature", "").encode(), notice_signature(secret, name, amount).encode()
    ):
        return None
    return text.format(amount=f"${usd_from_picousd(int(amount))}")


def notice_signature(secret: str, name: str, amount: str) -> str:
    """Returns the signature of a notice with an amount."""
    return hmac.digest(secret.encode(), f"{name} {amount}".encode(), "sha256").hex()[:32]
