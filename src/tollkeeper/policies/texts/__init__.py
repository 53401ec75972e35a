"""A prompt or an answer as text that the judge can read."""
