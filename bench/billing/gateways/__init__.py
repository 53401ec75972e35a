"""How each gateway is set up, called and asked for its books."""
