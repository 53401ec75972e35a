"""Use cases of inference: running a call, checking its options and policies, recording it."""
