"""Credit, balances and limits as operators see and change them."""
