"""An inference gateway that keeps the account."""
