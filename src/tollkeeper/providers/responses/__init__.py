"""The Responses protocol towards backends."""
