"""One inference call from its arrival to its end: plan, hold, policies, backend, settlement, record.

Only the order of the steps is here; each step belongs to the room that knows its topic.
"""
