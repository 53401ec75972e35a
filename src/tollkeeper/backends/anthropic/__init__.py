"""Implements Anthropic's Messages protocol, at Anthropic's own endpoint, at Vertex AI and at Amazon
Bedrock."""
