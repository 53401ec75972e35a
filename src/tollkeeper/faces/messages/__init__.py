"""Anthropic's Messages protocol: answers and token counts."""
