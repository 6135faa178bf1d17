"""Preprocessed shader text as a list of tokens whose text can be edited in place, lines kept."""

from __future__ import annotations

import re
from dataclasses import dataclass

PATTERN = re.compile(
    r"""(?P<marker>^\#[^\n]*)|(?P<space>[ \t\r\f\v]+|\n)|(?P<string>"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')
    |(?P<number>\.?[0-9](?:[eEpP][+-]|[0-9A-Za-z_.'])*)|(?P<name>[A-Za-z_]\w*)
    |(?P<sign>::|->|\+\+|--|<<=|>>=|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|<<|.)""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
LINE_MARKER = re.compile(r'#\s+(?:line\s+)?(\d+)\s+"([^"]*)"')
BRACKETS = {"(": ")", "[": "]", "{": "}"}


@dataclass
class Token:
    kind: str
    text: str
    place: str = ""  # "file:line"


END = Token("end", "")


def failure(place: str, message: str) -> SyntaxError:
    """What a shader that Metal would refuse raises, worded as the compiler's own errors are."""
    return SyntaxError(f"{place}: error: {message}")


class Text:
    """All tokens in `tokens`, those that mean something in `code`; indices are into `code`."""

    def __init__(self, source: str) -> None:
        self.tokens = list(tokenize(source))
        self.code = [t for t in self.tokens if t.kind not in ("space", "marker")]

    def __getitem__(self, i: int) -> Token:
        return self.code[i] if 0 <= i < len(self.code) else END

    def __len__(self) -> int:
        return len(self.code)

    def __str__(self) -> str:
        return "".join(t.text for t in self.tokens)

    def words(self, begin: int, end: int) -> list[str]:
        return [t.text for t in self.code[begin:end] if t.text]

    def blank(self, begin: int, end: int) -> None:
        for t in self.code[begin:end]:
            t.text = ""

    def closing(self, i: int) -> int:
        """Index of the bracket that closes the one at i."""
        opening, depth, start = self[i].text, 0, i
        while self[i] is not END:
            depth += self[i].text == opening
            depth -= self[i].text == BRACKETS[opening]
            if depth == 0:
                return i
            i += 1
        raise failure(self[start].place, f"expected '{BRACKETS[opening]}'")

    def closing_angle(self, i: int) -> int:
        """Index of the `>` that closes the `<` at i."""
        depth, start = 0, i
        while self[i] is not END and self[i].text != ";":
            depth += self[i].text == "<"
            depth -= self[i].text == ">"
            if depth == 0:
                return i
            i = self.closing(i) + 1 if self[i].text in BRACKETS else i + 1
        raise failure(self[start].place, "expected '>'")

    def skip(self, i: int) -> int:
        """The index after the token at i, or after the bracket that it opens."""
        if self[i].text == "<":
            return self.closing_angle(i) + 1
        return self.closing(i) + 1 if self[i].text in BRACKETS else i + 1


def tokenize(source: str):
    file, line = "program_source", 1
    for match in PATTERN.finditer(source):
        kind, text = str(match.lastgroup), match.group()
        marker = LINE_MARKER.match(text) if kind == "marker" else None
        if marker:
            file, line = marker[2], int(marker[1]) - 1
        yield Token(kind, text, f"{file}:{line}")
        line += text.count("\n")
