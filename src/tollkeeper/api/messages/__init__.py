"""Messages: token counting."""
