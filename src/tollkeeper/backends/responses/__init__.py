"""Implements the Responses protocol towards backends: encodes requests and reads answers."""
