"""Checks that are counted, for the tests in Python: `check` each, `summary` at the end."""
passed = failed = 0


def check(name, is_right, *compared):
    global passed, failed
    passed, failed = passed + bool(is_right), failed + (not is_right)
    print("ok  " if is_right else "FAIL", name, *(() if is_right else compared), flush=True)


def summary():
    """Prints the last line; the exit code."""
    print(f"{passed} passed, {failed} failed")
    return int(failed != 0)
