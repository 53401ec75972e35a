"""The Converse wire: the protocol of Amazon Bedrock for models of every provider."""
