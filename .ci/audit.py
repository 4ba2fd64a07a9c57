"""Is anything known against the locked set, .ci/constraints.txt? `make audit`.

    python .ci/audit.py [OPTION …]     # options of pip-audit, such as `-s osv` for another service

pip-audit asks the service, PyPI's by default, about each version. By itself it calls a set clean of which it found out
nothing; here, what could not be looked up is an error. An exception is a line of .ci/audit-exceptions:

    PYSEC-2026-1  2026-12-31  package: why it does no harm here

It holds until that day, on which somebody has to look again.

Exit code 0: all was looked up, and nothing is known but exceptions; 1: something is known; 2: the answer is incomplete.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCKED = ROOT / ".ci/constraints.txt"
EXCEPTIONS = ROOT / ".ci/audit-exceptions"


@dataclass(frozen=True)
class Exemption:
    """A known vulnerability that somebody has judged: until which day, and why it does no harm."""

    until: date
    reason: str


def main() -> None:
    today = date.today()
    try:
        known = exceptions(EXCEPTIONS.read_text(encoding="utf-8"))
        found = ask(LOCKED, sys.argv[1:])
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    lines, code = judge(found, known, today)
    print("\n".join(lines))
    sys.exit(code)


def exceptions(text: str) -> dict[str, Exemption]:
    """Those of the file, by the id of the vulnerability.

    Raises:
        ValueError: a line that is none, named by its number.
    """
    found = {}
    for number, line in enumerate(text.splitlines(), start=1):
        words = line.partition("#")[0].split(maxsplit=2)
        if not words:
            continue
        try:
            name, until, reason = words
            found[name] = Exemption(date.fromisoformat(until), reason)
        except ValueError:
            raise ValueError(f"{EXCEPTIONS.name}, line {number}: {line!r}: expected ID YYYY-MM-DD REASON") from None
    return found


def ask(locked: Path, options: Sequence[str]) -> list[dict[str, Any]]:
    """What pip-audit has found out about each package.

    Raises:
        ValueError: nothing, for the service did not answer.
    """
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(locked), "--no-deps", "--disable-pip"]
    command += ["--format", "json", "--desc", "off", "--progress-spinner", "off", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        answer: list[dict[str, Any]] = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ValueError(
            f"the service of vulnerabilities did not answer, so nothing was checked: {reason}; "
            "`make audit OPTIONS='-s osv'` and the like ask another one"
        ) from None
    return answer


def judge(packages: Sequence[dict[str, Any]], known: dict[str, Exemption], today: date) -> tuple[list[str], int]:
    """What to say, and the exit code."""
    lines: list[str] = []
    against = 0
    used: set[str] = set()
    unknown = [one["name"] for one in packages if "skip_reason" in one]
    for one in packages:
        for vulnerability in one.get("vulns", []):
            names = [vulnerability["id"], *vulnerability.get("aliases", [])]
            exempt = next((name for name in names if name in known), None)
            what = f"{one['name']} {one['version']}: {', '.join(names)}"
            if exempt is not None and known[exempt].until >= today:
                used.add(exempt)
                lines.append(f"excepted until {known[exempt].until}: {what}: {known[exempt].reason}")
                continue
            against += 1
            fixed = ", ".join(vulnerability.get("fix_versions", [])) or "no version yet"
            ended = f"; the exception ended on {known[exempt].until}" if exempt is not None else ""
            used |= {exempt} if exempt is not None else set()
            lines.append(f"known: {what}; mended in {fixed}{ended}")
    lines += [f"note: {name} in {EXCEPTIONS.name} is of no use any more" for name in known if name not in used]
    if unknown:
        some = ", ".join(unknown[:5]) + (", …" if len(unknown) > 5 else "")
        lines.append(f"error: {len(unknown)} of {len(packages)} could not be looked up ({some})")
        if len(unknown) == len(packages):
            lines.append("error: the service knows none of them, so nothing was checked; is it the right one?")
    lines.append(
        f"{len(packages) - len(unknown)} of {len(packages)} versions looked up, {against} vulnerabilities known, "
        f"{sum(line.startswith('excepted') for line in lines)} excepted"
    )
    return lines, 1 if against else 2 if unknown or not packages else 0


if __name__ == "__main__":
    main()
