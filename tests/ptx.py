"""Reads PTX as far as tests need: which instructions can follow which, over all jumps."""

from __future__ import annotations

import re
from collections import deque

_LABEL = re.compile(r"(\$L__BB\w+):")
_JUMP = re.compile(r"(?:@!?%p\d+\s+)?bra(?:\.uni)?\s+(\$L__BB\w+);")
_TABLE = re.compile(r"(\$L_brx_\d+): \.branchtargets\s+([^;]*);")
_TABLE_JUMP = re.compile(r"brx\.idx\s+%\w+, (\$L_brx_\d+);")


def successors(ptx):
    """The lines of a kernel, and for each those that may run next, by number."""
    lines = [line.strip() for line in ptx.splitlines()]
    places = {found[1]: place for place, line in enumerate(lines) if (found := _LABEL.match(line))}
    tables = {name: [label.strip() for label in labels.split(",")] for name, labels in _TABLE.findall(ptx)}
    following = []
    for place, line in enumerate(lines):
        if table := _TABLE_JUMP.match(line):
            following.append([places[label] for label in tables[table[1]]])
        elif jump := _JUMP.match(line):
            following.append([places[jump[1]], *([place + 1] if line.startswith("@") else [])])
        else:
            following.append([] if line.startswith("ret") or place == len(lines) - 1 else [place + 1])
    return lines, following


def reaches(ptx, start, goal, barrier):
    """Whether a line that matches `start` can be followed by one that matches `goal` with no `barrier` between them."""
    lines, following = successors(ptx)
    queue = deque(place for place, line in enumerate(lines) if re.search(start, line))
    seen = set(queue)
    while queue:
        for place in following[queue.popleft()]:
            if place in seen or re.search(barrier, lines[place]):
                continue
            if re.search(goal, lines[place]):
                return True
            seen.add(place)
            queue.append(place)
    return False
