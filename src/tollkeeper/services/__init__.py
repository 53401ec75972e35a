"""Contains the use cases of the gateway, usually one method for each use case. Use cases begin and
end the database transactions, and do not depend on HTTP."""
