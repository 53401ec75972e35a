"""One organization's grants, charges and balances in one month."""
