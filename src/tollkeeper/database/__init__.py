"""PostgreSQL: connections, transactions, the fence against old servers, the schema.

Statements about a topic are in that topic's store.
"""
