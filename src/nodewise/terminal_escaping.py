"""Words of somebody else - a tenant, a server, a file - as a terminal shows them and does not obey."""


def visible(text: str) -> str:
    """The text, with escapes such as `\\x1b` for what moves a cursor, colours, begins a line or turns the direction of
    writing. Tabs stay.
    """
    if text.isprintable():
        return text
    # repr, as the codec of that name is a module that has to be found first
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)


def short(text: str, longest: int = 300) -> str:
    """As much of a text as people read, visible and in one line of at most so many characters."""
    line = visible(" ".join(text[: 4 * longest].split()))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
