"""PostgreSQL: the pool, the schema, and all SQL, a module per kind of object. No use cases."""
