"""Anthropic's Messages protocol, at Anthropic, Vertex AI and Amazon Bedrock."""
