"""PostgreSQL: the pool, the schema and all SQL text, one file a noun. Knows no use case."""
