"""The chat wire: the request as chat servers take it, the answers as they give them."""
