"""Implements the Responses wire: encodes calls as Responses requests and reads Responses
answers."""
