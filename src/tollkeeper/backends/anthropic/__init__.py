"""Implements the Messages wire of Anthropic, at its own endpoint and at Vertex AI."""
