"""Escapes control characters in text from tenants, servers and files for output to a terminal."""


def visible(text: str) -> str:
    """The text with escapes such as `\\x1b` for all characters that are not printable, except tabs. These include line
    ends, control sequences and changes of the writing direction.
    """
    if text.isprintable():
        return text
    # repr instead of the codec `unicode_escape`, whose module would have to be imported first
    return "".join(c if c.isprintable() or c == "\t" else repr(c)[1:-1] for c in text)


def short(text: str, longest: int = 300) -> str:
    """The escaped text in one line of at most `longest` characters."""
    line = visible(" ".join(text[: 4 * longest].split()))
    return line if len(line) <= longest else f"{line[: longest - 1]}…"
