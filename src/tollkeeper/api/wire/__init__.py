"""Defines the wire types: structs for the JSON of requests and responses, with the limits of all
fields. They contain no logic."""
