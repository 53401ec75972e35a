"""Implements Anthropic's Messages protocol: answers (POST /v1/messages) and token counts (POST
/v1/messages/count_tokens)."""
