"""What a message may show of settings that hold or name secrets."""


def shown_variable(name: str) -> str:
    """An environment variable for a message. A secret that was written down in the place of a
    name hardly looks like one, and is not repeated."""
    return f"${name}" if name == name.upper() else "the variable that it names"
