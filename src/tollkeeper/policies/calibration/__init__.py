"""From the judge's scores to probabilities, and how they drift."""
