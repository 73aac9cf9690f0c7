#!/bin/sh
# The plan of the house: see test_structure.py. Last line: `N passed, N failed`.
cd "$(dirname "$0")/.." || exit 1
command -v python3 >/dev/null 2>&1 || { echo "skipped: the plan of the house: there is no python3"; echo "0 passed, 0 failed, 1 skipped"; exit 0; }
exec python3 scripts/test_structure.py
