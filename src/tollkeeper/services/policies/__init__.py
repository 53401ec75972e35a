"""Use cases of policies: editing, publishing, applying, trying and calibrating them."""
