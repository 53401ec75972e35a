"""Implements the Messages face, Anthropic's protocol for clients. It creates answers (POST
/v1/messages) and token counts (POST /v1/messages/count_tokens)."""
