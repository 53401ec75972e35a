"""A provider's bill beside the ledger."""
