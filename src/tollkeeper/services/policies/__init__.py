"""Contains the use cases of policies: editing and publishing policies, applying them to calls, and
trying and calibrating them."""
