"""Lists planted bugs in payments and statements, and the tests that must catch them."""

from tests.proofs.bug import Bug, SqlBug

PAYMENT_BUGS = {
    "a payment is granted again for each event": Bug(
        "Payments._book",
        "(payment_kind, paid - booked_paid)",
        "(payment_kind, paid)",
        ("money/payments/test_payments.py",),
    ),
    "a refund that failed stays withdrawn": SqlBug(
        "DUE",
        """
        - coalesce(sum(w.amount) FILTER (WHERE w.kind = 'refund' AND NOT w.withdrawn), 0)
        """,
        "",
        ("money/payments/test_payments.py",),
    ),
    "an old report of a dispute replaces a newer one": SqlBug(
        "_add_withdrawal",
        "WHERE (excluded.stage, excluded.amount) > (w.stage, w.amount)",
        "",
        ("money/payments/test_payments.py",),
    ),
    "an event without a valid signature is booked": Bug(
        "receive",
        'livemode = console.signed_livemode(body, request.headers.get("stripe-signature", ""))',
        "livemode = read_event(body).livemode",
        ("console/test_payment_webhook.py",),
    ),
    "the secret of the test mode signs real payments": Bug(
        "receive",
        "if event.livemode is not livemode:",
        "if False:",
        ("console/test_payment_webhook.py",),
    ),
    "a statement leaves out the changes since its month": Bug(
        "Statements.statement_show",
        "closing = balance.granted_picousd - balance.settled_picousd - later",
        "closing = balance.granted_picousd - balance.settled_picousd",
        ("money/test_statements.py",),
    ),
}
