"""The Responses protocol (POST /v1/responses)."""
