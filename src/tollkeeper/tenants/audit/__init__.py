"""One entry for every change, in the transaction of the change."""
