"""The weight notation of prompts: `(text)`, `((text))`, `(text:1.3)`.

Rules: goldens, section 4. `( )` multiplies by 1.1 per level, `(text:1.3)` sets the weight; `\\(` and `\\)`
are plain parentheses; unbalanced ones stay in the text.
"""

from __future__ import annotations

LEVEL_FACTOR = 1.1
# 1.1 to the power of this is about 2 * 10^8: no prompt means it, and each level costs a pass over the text.
MAX_DEPTH = 200

# Stand-ins for escaped parentheses while the weights are parsed.
_CLOSE = "\0\1"
_OPEN = "\0\2"


def escape_important(text: str) -> str:
    """Hide `\\(` and `\\)` from the parser."""
    return text.replace("\\)", _CLOSE).replace("\\(", _OPEN)


def unescape_important(text: str) -> str:
    """Bring them back, as plain parentheses."""
    return text.replace(_CLOSE, ")").replace(_OPEN, "(")


def parse_parentheses(text: str) -> list[str]:
    """Cut into outermost groups in parentheses and the text between them; nothing is lost."""
    groups: list[str] = []
    depth = start = 0
    for i, char in enumerate(text):
        if char == "(":
            if depth == 0 and i > start:
                groups.append(text[start:i])
                start = i
            depth += 1
        elif char == ")":
            depth -= 1
            if depth == 0:
                groups.append(text[start : i + 1])
                start = i + 1
    if start < len(text):
        groups.append(text[start:])
    return groups


def token_weights(text: str, current_weight: float = 1.0, depth: int = 0) -> list[tuple[str, float]]:
    """Segments of `text` (escaped) with their weights, in order."""
    segments: list[tuple[str, float]] = []
    for group in parse_parentheses(text):
        if len(group) < 2 or group[0] != "(" or group[-1] != ")" or depth >= MAX_DEPTH:
            segments.append((group, current_weight))
            continue
        inner, weight = group[1:-1], current_weight * LEVEL_FACTOR
        colon = inner.rfind(":")
        if colon > 0:
            try:
                weight = float(inner[colon + 1 :])
            except ValueError:
                pass
            else:
                inner = inner[:colon]
        segments.extend(token_weights(inner, weight, depth + 1))
    return segments


def parse_prompt(text: str) -> list[tuple[str, float]]:
    """Segments of a prompt with their weights, escapes resolved."""
    return [(unescape_important(part), weight) for part, weight in token_weights(escape_important(text))]
