"""HTTP without any operation: requests, errors, event streams, the table's rows."""
