"""The wire types: structs of the interface's JSON with every bound. They know no use case."""
