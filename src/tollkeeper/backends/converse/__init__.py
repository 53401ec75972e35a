"""Implements the Converse wire: Amazon Bedrock's protocol for models of every provider."""
