"""Contains the use cases about money: admission, group commit, recovery, reconciliation, credit
and costs."""
