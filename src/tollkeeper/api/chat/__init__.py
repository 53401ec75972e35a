"""Chat completions: from the request to a call, and from the call's events to chat again."""
