"""The public HTTP face: wire types, the route table, the envelope. No rule lives here."""
