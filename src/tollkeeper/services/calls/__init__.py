"""Use cases of inference: one call, its options, its policies' gate, its activity."""
