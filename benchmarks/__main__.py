"""Every benchmark in turn: python -m benchmarks [NAME …]. Results also go to .data/bench.json."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("append", "level1", "manifests", "paths", "pages", "overhead", "importing", "browser")


def main() -> int:
    wanted = sys.argv[1:] or list(NAMES)
    if unknown := sorted(set(wanted) - set(NAMES)):
        print(f"there is no benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
        return 2
    results = {}
    for name in wanted:
        print(f"\n== {name}", flush=True)
        done = subprocess.run(
            [sys.executable, "-m", f"benchmarks.{name}"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
        )
        *table, last = done.stdout.strip().splitlines() or [""]
        print("\n".join(table))
        if done.returncode:
            return done.returncode
        results[name] = json.loads(last)
    path = ROOT / ".data" / "bench.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(results, indent=2) + "\n")
    print(f"\nas JSON: {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
