"""Who may spend what, and what was spent: holds, settlements, caps, credit, overage, payments, months.

In each topic, `rule` decides without I/O, `store` has the SQL and `service` the transactions. Prices are
in `core/pricing.py`.
"""
