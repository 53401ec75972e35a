"""Suggests the next step after a failure, in one more line on a terminal."""

_HINTS = (
    ("There is no organization ", "List them: tollkeeper organization list"),
    ("There is no project key ", "List them: tollkeeper project-key list PROJECT"),
    ("There is no project ", "List them: tollkeeper project list ORG"),
    ("There is no admin key ", "List them: tollkeeper admin-key list ORG"),
    ("There is no policy ", "List them: tollkeeper policy list ORG"),
    ("There is no request ", "List the newest: tollkeeper activity list"),
    ("There is no reservation ", "List unsettled calls: tollkeeper ledger unsettled"),
    ("The database cannot be reached", "Check it: tollkeeper doctor"),
    ("The settings file ", "Write one to start from: tollkeeper init"),
    ("The books are wrong", "Keep a copy of the database before you change anything."),
    ("No gateway serves", "Start one: tollkeeper serve"),
    ("judge: no judge is configured", "Name one under [judge] in the settings file."),
)


def next_step(message: str) -> str:
    """Returns "" if the message itself says what to do."""
    return next((hint for beginning, hint in _HINTS if message.startswith(beginning)), "")
