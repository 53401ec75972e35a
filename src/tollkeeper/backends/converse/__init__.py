"""Implements Converse, Amazon Bedrock's protocol for the models of all providers."""
