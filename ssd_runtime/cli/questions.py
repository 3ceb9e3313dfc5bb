"""Questions of several lines: a line that ends in a backslash goes on, and so does what three quotes open."""

from __future__ import annotations

FENCE = '"""'


class QuestionReader:
    """Puts lines together to questions; a question in fences is never taken for a command."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._fenced = False

    @property
    def is_open(self) -> bool:
        """Whether more lines of this question have to come."""
        return self._fenced or bool(self._lines)

    def push(self, line: str) -> str | None:
        """The question that `line` completes; None while it is open."""
        if not self.is_open and line.lstrip().startswith(FENCE):
            self._fenced = True
            line = line.lstrip().removeprefix(FENCE)
        goes_on = self._fenced_on(line) if self._fenced else self._continued(line)
        return None if goes_on else self.finish()

    def finish(self) -> str:
        """What there is of the question; the next line begins a new one."""
        question = "\n".join(self._lines).strip()
        self._lines.clear()
        self._fenced = False
        return question

    def _fenced_on(self, line: str) -> bool:
        stripped = line.rstrip()
        closed = stripped.endswith(FENCE)
        self._lines.append(stripped.removesuffix(FENCE) if closed else line)
        return not closed

    def _continued(self, line: str) -> bool:
        stripped = line.rstrip()
        goes_on = stripped.endswith("\\")
        self._lines.append(stripped.removesuffix("\\") if goes_on else line)
        return goes_on
