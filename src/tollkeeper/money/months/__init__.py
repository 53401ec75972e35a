"""The ledger's months: closing, exporting, dropping."""
