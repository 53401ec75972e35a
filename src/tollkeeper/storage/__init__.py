"""Accesses PostgreSQL: the connection pool, the schema and all SQL text, one file for each noun.
Knows no use case."""
