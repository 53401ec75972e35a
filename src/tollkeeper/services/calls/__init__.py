"""Contains the use cases of inference: a call, its options, its policies and its activity."""
