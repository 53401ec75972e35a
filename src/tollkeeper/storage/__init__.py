"""Accesses PostgreSQL: contains the connection pool, the schema, and all SQL text in one module for
each kind of object. Contains no use cases."""
