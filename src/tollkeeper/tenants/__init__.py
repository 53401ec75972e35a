"""Organizations, projects, keys, names, and the audit of what people change.

Their money is in `money`; authentication only says whose key it is.
"""
