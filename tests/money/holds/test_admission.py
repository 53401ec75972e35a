"""Tests the error of a call that is not admitted: its message, and the time after which to retry."""

from tests.support.tables import each
from tollkeeper.core.access import KeyStatus
from tollkeeper.core.errors import PaymentRequired, RateLimited, TollkeeperError, Unauthenticated
from tollkeeper.money.caps.rule import CapPeriod
from tollkeeper.money.holds.refusal_errors import refusal_error
from tollkeeper.money.holds.rule import Decision, Refusal

USD = 10**12


@each(
    ("decision", "kind", "said", "retry_after_s"),
    [
        (
            Decision(
                Refusal.CREDIT,
                needed_picousd=3 * USD,
                available_picousd=-USD // 2,
                held_picousd=USD,
                spent_picousd=7 * USD + 1,
            ),
            PaymentRequired,
            (
                "The organization's credit cannot cover this call: needed 3, available -0.5, held 1, "
                "spent 7.000000000001 USD."
            ),
            None,
        ),
        (
            Decision(Refusal.CREDIT, needed_picousd=USD, held_picousd=USD, retry_after_s=1),
            PaymentRequired,
            (
                "The organization's credit cannot cover this call: needed 1, available 0, held 1, "
                "spent 0 USD. Running calls hold part of the amount: this call may fit when they "
                "are settled."
            ),
            1,
        ),
        (
            Decision(
                Refusal.ORGANIZATION_CAP,
                needed_picousd=2 * USD,
                available_picousd=USD,
                spent_picousd=9 * USD,
                limit=10 * USD,
                period=CapPeriod.TOTAL,
            ),
            PaymentRequired,
            (
                "The organization's total spending cap cannot cover this call: needed 2, available 1, "
                "held 0, spent 9, cap 10 USD."
            ),
            None,
        ),
        (
            Decision(Refusal.PROJECT_CAP, needed_picousd=USD, period=CapPeriod.WEEK),
            PaymentRequired,
            (
                "The project's weekly spending cap cannot cover this call: needed 1, available 0, held 0, "
                "spent 0, cap 0 USD."
            ),
            None,
        ),
        (
            Decision(Refusal.RATE, limit=60, retry_after_s=7),
            RateLimited,
            "The project's limit of 60 requests per minute is reached.",
            7,
        ),
        (
            Decision(Refusal.CONCURRENCY, limit=4, retry_after_s=1),
            RateLimited,
            "The project's limit of 4 concurrent requests is reached.",
            1,
        ),
        (
            Decision(Refusal.KEY_NOT_ACTIVE, key_status=KeyStatus.REVOKED),
            Unauthenticated,
            "This API key is revoked.",
            None,
        ),
        (Decision(Refusal.KEY_NOT_ACTIVE), Unauthenticated, "This API key is not valid.", None),
        (
            Decision(Refusal.PROJECT_ARCHIVED),
            Unauthenticated,
            "The project of this API key is archived.",
            None,
        ),
    ],
)
def test_a_refusal_is_explained(
    decision: Decision, kind: type[TollkeeperError], said: str, retry_after_s: int | None
) -> None:
    error = refusal_error(decision)
    assert type(error) is kind
    assert (error.message, error.retry_after_s) == (said, retry_after_s)
