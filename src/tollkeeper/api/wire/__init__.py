"""Defines the wire types: structs of the interface's JSON with all limits. They know no use
case."""
