"""Events of a payment provider become grants, once each."""
