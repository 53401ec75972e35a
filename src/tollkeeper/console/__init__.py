"""The web console: pages, forms, sign-in and who may do what there.

No SQL but its own sessions', and no rules about money or policies: pages call services.
"""
