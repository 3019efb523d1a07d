#!/usr/bin/env python3
"""Makes the page of the papers: each table and figure with its picture, and our numbers beside the printed ones.

usage: experiments/papers/page.py [-o FILE]

The numbers come from the CSVs in figures/, which `spillway reproduce all --figures` writes. The sentences come from
items.toml, in which [[ITEM]] stands for our number of that item, [[off: A, B]] for the largest difference from a printed
number, in percent, and [[computed: A, B]] for how many numbers there are, among the items whose names match the patterns A
and B. An `order` says which policies need no more than others in the paper; the page
says where ours do. Without -o the page is printed.
"""

import csv
import fnmatch
import itertools
import pathlib
import re
import sys
import tomllib

HERE = pathlib.Path(__file__).resolve().parent
FIGURES = HERE / "figures"
LONGEST = 40  # rows of a table that is shown whole


def rows_of(sheet):
    with open(FIGURES / f"{sheet}.csv", newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def number(text):
    """Formats a number for people: whole numbers and those from 1000 on without decimals, others to three digits."""
    if not text:
        return "-"
    value = float(text)
    return f"{value:.0f}" if value == round(value) or abs(value) >= 1000 else f"{value:.3g}"


def verdict(row):
    return {"true": "agrees", "false": "**misses**"}.get(row["passes"], "shown" if row["ours"] else "not computed")


def table(rows):
    """The lines of a table of our numbers, with the printed ones if there are any; a sum if the table is long."""
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
    shown = [row for row in printed if row["judged"] != "true"]
    far = sum(abs(float(row["rel_error"] or 0)) > 0.25 for row in shown)
    return f"{len(printed)} printed numbers: {agree} agree, {len(judged) - agree} miss" + \
        (f", {len(shown)} shown and not judged ({far} off by more than 25 %)." if shown else ".")


def order_sentence(order, known):
    """Says in which networks the policies are in the order that `order` gives, from the least, and what is not."""
    pattern = re.escape(order["item"]).replace(re.escape("{network}"), r"(\S+)")
    pattern = re.sub(r"\\{\w+\\}", r"\\S+", pattern)
    networks = list(dict.fromkeys(match[1] for item in known if (match := re.fullmatch(pattern, item))))
    wrong = {}
    for network, chain, (measure, name) in itertools.product(networks, order["least_first"], order["measures"].items()):
        numbers = [float(known[order["item"].format(network=network, policy=policy, measure=measure)]) for policy in chain]
        for (less, smaller), (more, larger) in itertools.combinations(zip(chain, numbers), 2):
            if smaller > larger:
                wrong.setdefault(network, []).append(f"{less} {smaller / larger:.2f} times {more} ({name})")
    chains = "; ".join(", ".join(chain) for chain in order["least_first"])
    return f"The policies are in the paper's order, from the least memory {chains}, in {len(networks) - len(wrong)} of " \
        f"{len(networks)} networks." + \
        (f" Against it: {'; '.join(f'{network} has ' + ', '.join(items) for network, items in wrong.items())}." if wrong else "")


class Numbers:
    """Our numbers of a paper by the names of items, for the sentences of items.toml."""

    def __init__(self, paper):
        self.paper = paper
        self.rows = {row["item"]: row for path in sorted(FIGURES.glob(f"{paper}-*.csv")) for row in rows_of(path.stem)}
        self.known = {item: row["ours"] for item, row in self.rows.items()}

    def matching(self, patterns):
        rows = [self.rows[item] for pattern in patterns.split(",") for item in fnmatch.filter(self.rows, pattern.strip())]
        return rows or sys.exit(f"page: {self.paper} has no item like '{patterns}'")

    def filled(self, sentence):
        def ours(match):
            item = " ".join(match[1].split())
            if item.startswith("off: "):
                return f"{max(abs(float(row['rel_error'])) for row in self.matching(item[5:]) if row['rel_error']):.0%}"[:-1]
            if item.startswith("computed: "):
                return str(sum(row["ours"] != "" for row in self.matching(item[10:])))
            if item not in self.known:
                sys.exit(f"page: {self.paper} has no item '{item}'")
            return number(self.known[item])

        return re.sub(r"\[\[(.*?)\]\]", ours, sentence.strip(), flags=re.DOTALL)


def page():
    with open(HERE / "items.toml", "rb") as stream:
        texts = tomllib.load(stream)
    lines = ["<!-- Made by experiments/papers/page.py from items.toml and figures/*.csv: edit these files. -->",
             "# The papers' tables and figures, computed again", "", texts["page"].strip(), ""]
    sheets = {path.stem for path in FIGURES.glob("*.csv")}
    for paper, text in texts["paper"].items():
        numbers = Numbers(paper)
        lines += [f"## {text['title']}", "", numbers.filled(text["text"]), ""]
        for name, item in text["item"].items():
            sheet = f"{paper}-{name}"
            if sheet not in sheets:
                sys.exit(f"page: items.toml has {sheet}, but figures/ has no CSV of it")
            sheets.remove(sheet)
            lines += [f"### {item['title']}", "", f"`spillway reproduce {sheet}` ([CSV](figures/{sheet}.csv)). "
                      + " ".join([*([order_sentence(item["order"], numbers.known)] if "order" in item else []),
                                  numbers.filled(item["differs"])]), ""]
            drawn = [f"![{item['title']}](figures/{sheet}.png)"] if (FIGURES / f"{sheet}.png").exists() else []
            shown = table(rows_of(sheet))
            printed = [row for row in rows_of(sheet) if row["printed"]]
            lines += [tally(printed), ""] if 0 < len(printed) <= LONGEST else []
            for block in (drawn, shown if not drawn or shown[:1] and "printed" in shown[0] else []):
                lines += [*block, ""] if block else []
    if sheets:
        sys.exit(f"page: items.toml has no entry for {', '.join(sorted(sheets))}")
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
