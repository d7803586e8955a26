"""summary.md: the verdict, for the summary page of a CI step."""

import html
from pathlib import Path

from ..checker.problems import printable, render
from ..checker.results import Results


def write_summary(file: Path, results: Results) -> None:
    """Write verdict, checks and the first problems as Markdown; text of others is escaped.

    It stays under the 1 MiB over which a step's summary is dropped whole: `render` shows 20
    problems, and of each line 1,000 characters.
    """
    title = printable(results.summary.splitlines()[0])
    lines = [f"## {_inert(title)}", "", "| check | status | compared | why not all |"]
    lines.append("| -- | -- | --: | -- |")
    for check in results.checks:
        why = _inert(printable(check.why or ""))
        lines.append(f"| `{check.id}` | {check.status} | {check.seen} | {why} |")
    if results.problems:
        lines += ["", f"<pre>{_inert(render(results.problems))}</pre>"]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _inert(text: str) -> str:
    return html.escape(text).replace("`", "&#96;").replace("|", "&#124;")
