"""Makes docs/benchmarks.md of the results of all benchmarks."""

from __future__ import annotations

from collections import Counter

HEAD = """# Benchmarks

Made by `python benchmarks/run.py` of the results in `benchmarks/results`; not edited by hand. What
each benchmark does, and how to read its figures, is in `benchmarks/README.md`.

Everything ran on one machine, site, servers and crawler side by side, and was limited by its
processors: **ratios carry over to another machine, figures do not.** A ratio is taken between two
results of the same round, *ours / theirs*; shown are the median of the rounds and their range. A
target is met or missed by the median, or, with "each time", by every round. Beside a peer a result
is *better*, *lost*, or *even* where the two are within 3 %: the clock shows no less.
"""


def render(results, names):
    """Return the page; *results* by name, *names* of all benchmarks that there are."""
    newest = max(results.values(), key=lambda one: one.begun, default=None)
    parts = [HEAD]
    if newest is not None:
        parts += [_machine(newest), _verdicts(results)]
    missing = [name for name in names if name not in results]
    if missing:
        parts.append(f"**Not run:** {', '.join(missing)}.\n")
    parts += [_section(results[name], newest) for name in sorted(results)]
    return "\n".join(parts)


def _machine(newest):
    pairs = [(name, text) for name, text in newest.machine.items()]
    pairs.append(("versions", ", ".join(f"{name} {one}" for name, one in newest.versions.items())))
    return "## Machine\n\n" + _markdown(("", ""), [*pairs, ("last run", newest.begun)])


def _verdicts(results):
    rows, counts = [], Counter()
    for name in sorted(results):
        for one in results[name].comparisons:
            met, against = one.met(), one.against_peer()
            counts["met"] += met is True
            counts["missed"] += met is False
            counts[against] += against is not None
            if met is False or against == "lost":
                rows.append((f"[{name}](#{name})", one.what, *_judged(one)))
    text = (
        f"Targets: {counts['met']} met, {counts['missed']} missed. Beside peers: {counts['won']} "
        f"better, {counts['even']} even, {counts['lost']} lost.\n"
    )
    failed = [f"[{name}](#{name})" for name in sorted(results) if results[name].error]
    if failed:
        text += f"\n**Did not come to their end:** {', '.join(failed)}.\n"
    if rows:
        head = ("benchmark", "comparison", "median", "range", "target", "verdict")
        text += "\nMissed, or lost:\n\n" + _markdown(head, rows)
    return "## Verdicts\n\n" + text


def _section(result, newest):
    parts = [f"## {result.benchmark}\n", f"{result.title}\n", _circumstances(result, newest)]
    if result.error:
        parts.append(f"**Did not come to its end:**\n\n```\n{result.error.strip()}\n```\n")
    for one in result.tables:
        if one["title"]:
            parts.append(f"{one['title']}\n")
        parts.append(_markdown(one["head"], one["rows"]))
    judged = [one for one in result.comparisons if one.verdict()]
    if judged:
        head = ("comparison", "median", "range", "target", "verdict")
        parts.append(_markdown(head, [(one.what, *_judged(one)) for one in judged]))
    if result.text:
        parts.append(f"```\n{result.text.strip()}\n```\n")
    if result.left_out:
        parts.append("".join(f"- Left out: {what}\n" for what in result.left_out))
    return "\n".join(parts)


def _circumstances(result, newest):
    text = f"{result.begun}, {result.seconds:.0f} s"
    if result.load:
        text += f", load {min(result.load):.1f} to {max(result.load):.1f}"
    if result.quick:
        text += ", **quick: small sizes, one round**"
    if result.arguments:
        text += f", `{' '.join(result.arguments)}`"
    for what in ("machine", "versions"):
        here, there = getattr(result, what), getattr(newest, what)
        other = [f"{name} {one}" for name, one in here.items() if there.get(name) != one]
        if other:
            text += f"; {', '.join(other)}"
    return f"{text}.\n"


def _judged(one):
    verdict = one.verdict()
    for word in ("MISSED", "lost to"):
        verdict = verdict.replace(word, f"**{word.lower()}**")
    return one.figure(), one.spread(), one.target(), verdict


def _markdown(head, rows):
    def line(cells):
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |\n"

    rule = ["---"] + ["--:"] * (len(head) - 1)
    return line(head) + line(rule) + "".join(map(line, rows))
