"""Defines the wire types: structs for the JSON of requests and responses, with the limits of all
fields. The structs contain no logic."""
