"""The JSON of requests and responses, with the limits of all fields, but no logic."""
