"""What decoding keeps of the past: feature width and numbers per head and layer."""


def feature_width(name, options, size):
    """F of a linear mechanism with heads of `size`; None for those that keep keys and values. The options are complete."""
    if name == "slay":
        if options["poly"] == "exact" and options["fusion"] == "tensor":
            return None  # decoding walks a cache, see docs/limits.md
        return int(options["R"]) * int(options["M"]) * (int(options["P"]) if options["fusion"] == "tensor" and
                                                         options["poly"] != "none" else 1)
    if name in ("favor", "rff"):
        return int(options["M"])
    return {"uniform": 1, "elu": size, "cosformer": 2 * size}.get(name)


def width_and_state(mechanisms, size, T):
    """(F, or None where layers differ or have none; numbers per head and layer that decoding keeps at position T), the mean
    over `mechanisms`, [(name, options)] of the layers. A cache holds T keys and values, or as many as the window."""
    widths = [feature_width(name, options, size) for name, options in mechanisms]
    states = [width * (size + 1) if width else 2 * size * min(T, int(options.get("window", 0)) or T)
              for width, (_, options) in zip(widths, mechanisms)]
    return widths[0] if len(set(widths)) == 1 else None, round(sum(states) / len(states))


def of_run(run):
    """That of a run by its configuration, which is not trusted: (None, None) when it does not tell."""
    attention = run.configuration["attention"]
    layers = [(entry["name"], entry) for entry in (attention if isinstance(attention, list) else [attention])
              for _ in range(entry.get("layers", 1))]
    try:
        return width_and_state(layers, run.options["width"] // run.options["heads"], run.options["context"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError, OverflowError):
        return None, None
