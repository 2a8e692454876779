"""Writes docs/results/pgbouncer-suite.md from a run of PgBouncer's test suite.

usage: pgbouncer-suite.py RESULTS.xml REASONS [COMMIT]

REASONS has a line for each test that differs: its name, a tab, and why. Without
COMMIT only the tests that did not pass are printed, with their errors.
"""

import datetime
import sys
import xml.etree.ElementTree as xml


def outcome(case):
    for kind in ("failure", "error"):
        found = case.find(kind)
        if found is not None:
            return "differs", found.get("message") or ""
    skipped = case.find("skipped")
    if skipped is not None:
        return "cannot run", skipped.get("message") or ""
    return "passes", ""


def main():
    results, reasons = sys.argv[1], {}
    with open(sys.argv[2], encoding="utf-8") as f:
        for line in f:
            if line.strip() and not line.startswith("#"):
                name, why = line.rstrip("\n").split("\t", 1)
                reasons[name] = why
    tests = {}  # a test whose cleanup fails is there twice
    for case in xml.parse(results).iter("testcase"):
        key = (case.get("classname").split(".")[-1], case.get("name"))
        what, why = outcome(case)
        if tests.get(key, ("passes", ""))[0] == "passes":
            tests[key] = (what, why)
    if len(sys.argv) < 4:
        for (file, name), (what, why) in sorted(tests.items()):
            if what != "passes":
                print(f"{file}::{name}: {what}: {' '.join(why.split())[:300]}")
        return
    count = {w: sum(1 for t in tests.values() if t[0] == w) for w in ("passes", "differs", "cannot run")}
    can = count["passes"] + count["differs"]
    print("# PgBouncer's test suite, with weir in its place\n")
    today = datetime.date.today()
    print(f"Written by `scripts/pgbouncer-suite CHECKOUT` on {today.day} {today:%B %Y}; the script says what it needs. The suite is "
          f"PgBouncer's at commit {sys.argv[3]}, run by `weir pgbouncer` as PgBouncer's own binary would be, with the same files.\n")
    print("| collected | can run on this machine | pass | differ | rate |")
    print("|---|---|---|---|---|")
    print(f"| {len(tests)} | {can} | {count['passes']} | {count['differs']} | {100 * count['passes'] / max(can, 1):.1f} % |\n")
    for what, title in (("differs", "What differs, and why"), ("cannot run", "What cannot run here"), ("passes", "What passes")):
        print(f"## {title}\n")
        print("| test | why |\n|---|---|" if what != "passes" else "| file | tests |\n|---|---|")
        if what == "passes":
            files = {}
            for (file, name), t in tests.items():
                if t[0] == what:
                    files.setdefault(file, []).append(name)
            for file, names in sorted(files.items()):
                print(f"| `{file}` ({len(names)}) | {', '.join(f'`{n}`' for n in sorted(names))} |")
        else:
            for (file, name), t in sorted(tests.items()):
                if t[0] == what:
                    base = name.split("[")[0]
                    why = reasons.get(name) or reasons.get(base) or (
                        "skipped by the suite: " + t[1] if what == "cannot run" else "not explained: " + " ".join(t[1].split())[:160])
                    print(f"| `{file}::{name}` | {why.replace('|', chr(92) + '|')} |")
        print()


main()
