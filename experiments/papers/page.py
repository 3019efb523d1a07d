#!/usr/bin/env python3
"""The page of the papers: each table and figure, its picture, ours beside what is printed, and what differs and why.

usage: experiments/papers/page.py [-o FILE]

Made from the numbers in figures/, as `spillway reproduce all --figures` writes them, and from the sentences in
items.toml, where [[ITEM]] stands for ours and [[h200 ITEM]] for ours on an H200. Without -o it is printed.
"""

import csv
import pathlib
import re
import sys
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
FIGURES = HERE / "figures"
OTHERS = {"h200": "H200"}  # machines besides the papers', by the folder of their figures
LONGEST = 40  # rows of a table that is shown whole


def rows_of(directory, sheet):
    with open(directory / f"{sheet}.csv", newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def number(text):
    """As people write it: whole numbers whole, others to three digits."""
    if not text:
        return "-"
    value = float(text)
    return f"{value:.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.3g}"


def verdict(row):
    return {"true": "agrees", "false": "**misses**"}.get(row["passes"], "shown" if row["ours"] else "not computed")


def table(rows):
    """Ours, beside what is printed where anything is."""
    printed = [row for row in rows if row["printed"]]
    shown = printed or rows
    if len(shown) > LONGEST:
        return [tally(printed)] if printed else []
    if not printed:
        return ["| item | ours | |", "|---|--:|---|",
                *(f"| {row['item']} | {number(row['ours'])} | {row['unit']} |" for row in shown)]
    return ["| item | printed | ours | | |", "|---|--:|--:|---|---|",
            *(f"| {row['item']} | {row['printed']} | {row['ours'] or '-'} | {row['unit']} | {verdict(row)} |"
              for row in shown)]


def tally(printed):
    judged = [row for row in printed if row["judged"] == "true"]
    agree = sum(row["passes"] == "true" for row in judged)
    others = len(printed) - len(judged)
    return f"{len(printed)} printed numbers: {agree} agree, {len(judged) - agree} miss" + \
        (f", {others} are shown and not judged." if others else ".")


def pictures(sheet, alt):
    """That of the paper's GPU, and those of the others beside it."""
    found = [(name, folder) for name, folder in [("the paper's GPU", ""), *((n, f"{f}/") for f, n in OTHERS.items())]
             if (FIGURES / folder / f"{sheet}.png").exists()]
    images = [f"![{alt}](figures/{folder}{sheet}.png)" for _, folder in found]
    if len(found) < 2:
        return images
    return ["| " + " | ".join(name for name, _ in found) + " |", "|---" * len(found) + "|",
            "| " + " | ".join(images) + " |"]


class Numbers:
    """Ours, by the names of items, for the sentences."""

    def __init__(self, paper):
        self.paper = paper
        self.known = {}
        for folder in ("", *OTHERS):
            for path in sorted((FIGURES / folder).glob(f"{paper}-*.csv")):
                for row in rows_of(path.parent, path.stem):
                    self.known[f"{folder} {row['item']}".strip()] = row["ours"]

    def filled(self, sentence):
        def ours(match):
            item = " ".join(match[1].split())
            if item not in self.known:
                sys.exit(f"page: {self.paper} has no item '{item}'")
            return number(self.known[item])

        return re.sub(r"\[\[(.*?)\]\]", ours, sentence.strip(), flags=re.DOTALL)


def page():
    with open(HERE / "items.toml", "rb") as stream:
        texts = tomllib.load(stream)
    lines = ["<!-- Made by experiments/papers/page.py from items.toml and figures/*.csv: edit those. -->",
             "# The papers' tables and figures, computed again", "", texts["page"].strip(), ""]
    sheets = {path.stem for path in FIGURES.glob("*.csv")}
    for paper, text in texts["paper"].items():
        numbers = Numbers(paper)
        lines += [f"## {text['title']}", "", numbers.filled(text["text"]), ""]
        for name, item in text["item"].items():
            sheet = f"{paper}-{name}"
            if sheet not in sheets:
                sys.exit(f"page: items.toml has {sheet}, figures/ does not")
            sheets.remove(sheet)
            lines += [f"### {item['title']}", "", f"`spillway reproduce {sheet}` ([CSV](figures/{sheet}.csv)). "
                      + numbers.filled(item["differs"]), ""]
            drawn = pictures(sheet, item["title"])
            shown = table(rows_of(FIGURES, sheet))
            for block in (drawn, shown if not drawn or shown[:1] and "printed" in shown[0] else []):
                lines += [*block, ""] if block else []
    if sheets:
        sys.exit(f"page: items.toml says nothing of {', '.join(sorted(sheets))}")
    return "\n".join(lines).rstrip() + "\n"


def main():
    arguments = sys.argv[1:]
    if arguments and (arguments[0] != "-o" or len(arguments) != 2):
        print(__doc__.strip())
        return 2
    text = page()
    if arguments:
        pathlib.Path(arguments[1]).write_text(text, "utf-8")
    else:
        print(text, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
