"""Contains the use cases of inference: running a call, checking its options and policies, and
recording its activity."""
