"""The Responses wire: the request as its servers take it, the answers as they give them."""
