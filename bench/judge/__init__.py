"""How good a judge is at yes-or-no questions: a small labelled set, and what a judge makes of it."""
