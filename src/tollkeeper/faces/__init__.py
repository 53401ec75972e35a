"""What clients talk to: chat, Responses, Messages and administration, each with its JSON and readers.

Bytes and sockets are in `http`, and what a request costs or may do is decided below.
"""
