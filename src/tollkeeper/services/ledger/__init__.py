"""Contains the use cases of money: admission, group commit, recovery, reconciliation, billing,
costs."""
