"""What changed between two commits, as Markdown for a pull request.

    python .ci/pull_request_report.py BASE HEAD [--plots FOLDER] [--link URL]

Metrics and parameters as `dvc metrics diff` and `dvc params diff` have them, where each curve of dvc.yaml ends and how
low it comes, and `noam compare`. A comment can hold no picture that is stored nowhere: `--plots` writes DVC's page of
the curves, and `--link` says where it will be found. Results that are neither in DVC's cache nor on a remote are named.

Exit code 0 also where results are missing; 1 with one line where a commit does not exist.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, os.fspath(ROOT))

from stages.analysis.study_text import escaped, printable  # noqa: E402

MOST = 60_000  # a comment on GitHub holds 65 536 characters
MAX_ROWS, MAX_CELL = 60, 200


def main() -> None:
    parser = argparse.ArgumentParser(description="What changed between two commits, as Markdown.")
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("head", help="the commit that is compared")
    parser.add_argument("--plots", type=Path, metavar="FOLDER", help="write DVC's page of the curves there")
    parser.add_argument("--link", metavar="URL", help="where that page will be found")
    arguments = parser.parse_args()
    commits = []
    for name in (arguments.base, arguments.head):
        found = subprocess.run(
            ["git", "rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if found.returncode:
            sys.exit(f"error: {printable(name)}: no such commit here; a shallow clone needs `git fetch --unshallow`")
        commits.append(found.stdout.strip())
    print(report(*commits, plots=arguments.plots, link=arguments.link), end="")


def report(base: str, head: str, *, plots: Path | None = None, link: str | None = None) -> str:
    """The report on two commits, given by their hashes; a part that would make it too long is left out by name."""
    note = _fetch(base, head)
    parts = [f"## What changes in numbers from `{base[:7]}` to `{head[:7]}`"]
    parts += [note] if note else []
    for title, content in (
        ("Metrics", metrics(base, head)),
        ("Parameters", parameters(base, head)),
        ("Curves", curves(base, head, plots, link)),
        ("Comparison", comparison(base, head)),
    ):
        part = f"### {title}\n\n{content}"
        if sum(map(len, parts)) + len(part) > MOST:
            part = f"### {title}\n\nLeft out, for it has {len(part)} characters and a comment holds 65536."
        parts.append(part)
    return "\n\n".join(parts) + "\n"


def metrics(base: str, head: str) -> str:
    """The table of `dvc metrics diff`."""
    return _changes("metrics", base, head, "No metric changed.")


def parameters(base: str, head: str) -> str:
    """The table of `dvc params diff`."""
    return _changes("params", base, head, "No parameter changed.")


def curves(base: str, head: str, folder: Path | None, link: str | None) -> str:
    """Where each curve of dvc.yaml ends and its lowest point; the page of the curves is written to `folder`."""
    done = _dvc("plots", "diff", base, head, "--json", "--split")
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        return f"`dvc plots diff` failed: {_last_line(done)}"
    named = [
        one for name, drawn in sorted(answer.get("data", {}).items()) if not name.endswith(".json") for one in drawn
    ]
    rows = [row for one in named for row in _curve(one, base, head)]
    errors: list[Mapping[str, str]] = answer.get("errors", [])
    lost = [_name(error, base) for error in errors if "source" in error]
    others = [f"{_of(error, base)}: {_plain(error.get('msg', ''))}" for error in errors if "source" not in error]
    said = [_table(["curve", "base: end", "base: lowest", "head: end", "head: lowest"], rows)] if rows else []
    if lost:
        said.append(f"Not in DVC's cache here, nor on a remote: {', '.join(dict.fromkeys(lost))}.")
    if others:
        said.append(f"`dvc plots diff` could not read {'; '.join(dict.fromkeys(others))}.")
    if folder is not None and rows:
        page = _dvc("plots", "diff", base, head, "--out", os.fspath(folder))
        if page.returncode:
            said.append(f"`dvc plots diff` could not write its page: {_last_line(page)}")
        elif link:
            said.append(f"The curves are drawn in `plots/index.html` of the artifact `report` of [the run]({link}).")
    return "\n\n".join(said) or "`dvc plots diff` has no curve to show."


def comparison(base: str, head: str) -> str:
    """What `noam compare` says, or why it says nothing."""
    done = subprocess.run(
        [sys.executable, "-m", "stages.cli", "compare", base, head, "--markdown"],
        env=_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return f"`noam compare` says nothing: {_last_line(done)}"
    head_line, _, rest = done.stdout.partition("\n")
    return rest.strip() if head_line.startswith("#") else done.stdout.strip()


def _fetch(base: str, head: str) -> str:
    """Bring what the report needs from the remote, where one is configured; what to say where that fails.

    What the remote does not have is no error to DVC: the parts of the report say what they miss.
    """
    from dvc.repo import Repo  # type: ignore[import-untyped]

    with Repo(os.fspath(Path.cwd())) as repo:
        if not repo.config["remote"]:
            return ""
        try:
            repo.fetch(targets=["train", "evaluate"], revs=[base, head], workspace=False)
        except Exception as error:  # DVC has no common base for what it raises
            return f"The remote cannot be read: {_plain(str(error).splitlines()[0] if str(error) else repr(error))}"
    return ""


def _changes(what: str, base: str, head: str, nothing: str) -> str:
    done = _dvc(what, "diff", base, head, "--json")
    try:
        answer: Mapping[str, Mapping[str, Mapping[str, Any]]] = json.loads(done.stdout)
    except ValueError:
        return f"`dvc {what} diff` failed: {_last_line(done)}"
    rows = [
        [key, _value(change.get("old")), _value(change.get("new")), _signed(change.get("diff"))]
        for _, changes in sorted(answer.items())
        for key, change in sorted(changes.items())
    ]
    return (
        _table(["metric" if what == "metrics" else "parameter", "base", "head", "difference"], rows)
        if rows
        else nothing
    )


def _curve(one: Mapping[str, Any], base: str, head: str) -> list[list[str]]:
    """The row of one curve, or one for each split of the text; `one` is what DVC would draw."""
    anchors, field = one["anchor_definitions"], _field(one)
    points = anchors["<DVC_METRIC_DATA>"]
    points = json.loads(points) if isinstance(points, str) else points
    title = anchors["<DVC_METRIC_TITLE>"]
    splits = list(dict.fromkeys(point.get("split") for point in points))
    rows = []
    for split in splits:
        row = [f"{title} ({split})" if len(splits) > 1 else title]
        for commit in (base, head):
            ys = [point[field] for point in points if (point["rev"], point.get("split")) == (commit, split)]
            finite = [y for y in ys if isinstance(y, int | float) and math.isfinite(y)]
            row += [_value(ys[-1] if ys else None), _value(min(finite, default=None))]
        rows.append(row)
    return rows


def _field(one: Mapping[str, Any]) -> str:
    """The name of what is drawn upwards."""
    waiting = [one["content"]]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            field = part.get("y", {}).get("field") if isinstance(part.get("y"), Mapping) else None
            if field:
                return str(field)
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    raise KeyError("y")


def _name(error: Mapping[str, str], base: str) -> str:
    """A result that DVC could not read, and of which of the two commits."""
    return f"`{error['source']}` of {_of(error, base)}"


def _of(error: Mapping[str, str], base: str) -> str:
    return "base" if error.get("rev") == base else "head"


def _table(head: Sequence[str], rows: Sequence[Iterable[str]]) -> str:
    lines = [head, ["---"] * len(head), *([_plain(cell) for cell in row] for row in rows[:MAX_ROWS])]
    more = f"\n\n{len(rows) - MAX_ROWS} more rows are left out." if len(rows) > MAX_ROWS else ""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + more


def _plain(text: str) -> str:
    """Text of somebody's files as it is, whatever Markdown would make of it."""
    return escaped(text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…")


def _value(found: Any) -> str:
    """A number in up to six digits, a dash for what is not there, anything else as JSON."""
    if found is None:
        return "–"
    if isinstance(found, float):
        return f"{found:.6g}"
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def _signed(found: Any) -> str:
    number = isinstance(found, int | float) and not isinstance(found, bool)
    return f"{'+' if found > 0 else ''}{_value(found)}" if number else "–"


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.strip().splitlines() or done.stdout.strip().splitlines() or [f"exit code {done.returncode}"]
    return _plain(lines[-1].removeprefix("ERROR: ").removeprefix("error: "))


def _dvc(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dvc", *arguments]
    return subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False)


def _environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.fspath(ROOT), "NOAM_LIVE": "off"}


if __name__ == "__main__":
    main()
