"""Converse, Amazon Bedrock's protocol for all providers' models."""
