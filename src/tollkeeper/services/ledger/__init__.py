"""Contains the use cases about money: admission, group commit, recovery, reconciliation, billing
and costs."""
