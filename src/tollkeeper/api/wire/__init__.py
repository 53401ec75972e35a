"""The structs of the interface, with every bound. Nothing here knows a use case."""
