"""What people and process managers start: the commands, the supervisor and its workers.

No rules: a command reads its arguments, calls a service and prints what it returns.
"""
