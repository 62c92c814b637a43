"""The page's pictures as HTML: text, bars and tables.

Nothing here runs a script or asks another host, so that the same markup serves the running
page and the static one. Colours come from `STYLE`, which knows light and dark.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup, escape
from torch import Tensor

from gdpo_verl.distinct import DISTINCT_TOLERANCE, levels
from gdpo_verl.lab.explain.compare import Rollout, tied_pairs

STYLE = """<style>
:root { --gx-gdpo: #0072b2; --gx-grpo: #d55e00; --gx-grid: #c9d1d9; --gx-mark: #fff3d1;
  --gx-soft: #59636e; --gx-third: #007a5a; }
@media (prefers-color-scheme: dark) {
  :root { --gx-gdpo: #56b4e9; --gx-grpo: #ff8c42; --gx-grid: #444c56; --gx-mark: #44370d;
    --gx-soft: #9aa5b1; --gx-third: #2fc497; }
}
.gx { font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
.gx h1 { font-size: 1.7rem; line-height: 1.25; font-weight: 700; padding-right: 2.5rem; }
.gx h2 { font-size: 1.3rem; font-weight: 700; margin: 1.5rem 0 .5rem; }
.gx h3 { font-size: 1.05rem; font-weight: 700; margin: 1.2rem 0 .4rem; }
.gx p { max-width: 46rem; margin: .6rem 0; }
.gx table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.gx th, .gx td { border-bottom: 1px solid var(--gx-grid); padding: .25rem .6rem .25rem 0;
  text-align: left; vertical-align: top; font-weight: normal; white-space: nowrap; }
.gx thead th { color: var(--gx-soft); }
.gx .wide { overflow-x: auto; margin: .8rem 0; }
.gx .prose { overflow-wrap: normal; }
.gx .prose td { white-space: normal; }
.gx pre { white-space: pre-wrap; overflow-wrap: anywhere; margin: .2rem 0;
  font: .78rem/1.4 ui-monospace, Menlo, Consolas, monospace; }
.gx .row { border-bottom: 1px solid var(--gx-grid); padding: .35rem .4rem; }
.gx .row.collapsed { background: var(--gx-mark); }
.gx .tie { border: 1px solid currentColor; border-radius: .3rem; padding: 0 .35rem;
  margin-left: .4rem; font-size: .8rem; }
.gx .bar { display: grid; grid-template-columns: 4.8rem 1fr 4.2rem; align-items: center;
  gap: .4rem; font-size: .8rem; }
.gx .bar span { overflow: hidden; text-overflow: ellipsis; }
.gx .bar b { text-align: right; font-variant-numeric: tabular-nums; font-weight: normal; }
.gx .track { position: relative; height: .85rem; background:
  linear-gradient(var(--gx-grid), var(--gx-grid)) center / 1px 100% no-repeat; }
.gx .track i { position: absolute; top: 0; bottom: 0; border-radius: .1rem; }
.gx .grpo i { background: repeating-linear-gradient(135deg, var(--gx-grpo) 0 4px,
  color-mix(in srgb, var(--gx-grpo) 70%, transparent) 4px 6px); }
.gx .gdpo i { background: var(--gx-gdpo); }
.gx .third i { background: var(--gx-third); }
.gx .figures { display: grid; gap: 1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr)); }
.gx .figures > div { max-width: 34rem; }
.gx a { color: var(--gx-gdpo); text-decoration: underline; }
.gx svg { width: 100%; height: auto; display: block; }
.gx .gaps td, .gx .gaps th { border: 0; padding: .1rem; text-align: center; font-size: .72rem; }
.gx .gaps td { min-width: 2rem; }
@media (max-width: 30rem) {
  .gx .gaps td, .gx .gaps th { font-size: .58rem; padding: .1rem 0; }
  .gx .gaps td { min-width: 1.6rem; }
}
.gx pre.command { border: 1px solid var(--gx-grid); border-radius: .3rem; padding: .6rem .8rem; }
.gx ul { list-style: disc; padding-left: 1.3rem; }
.gx li { max-width: 46rem; }
.gx details summary { cursor: pointer; }
</style>"""


def number(value: float) -> str:
    """A number as the page writes it: 1, 0.05, -3, 0.123."""
    return f"{round(value, 3) + 0.0:g}"  # no -0


def vector(rewards: Sequence[float]) -> str:
    """Rewards in brackets.

    >>> vector((1.0, 0.5))
    '[1, 0.5]'
    """
    return f"[{', '.join(map(number, rewards))}]"


def block(name: str, *parts: str) -> str:
    """One cell's output; tests and links find it by `name`.

    A part that is `Markup` stands as it is; any other string is a paragraph of plain text.
    """
    body = Markup().join(
        part if isinstance(part, Markup) else Markup("<p>{}</p>").format(part) for part in parts
    )
    # marimo takes a plain string only.
    return str(Markup('<div class="gx" id="{}">{}</div>').format(name, body))


def heading(level: int, title: str) -> Markup:
    return Markup("<h{0}>{1}</h{0}>").format(level, title)


def arxiv_link(title: str, number: str) -> Markup:
    return Markup('<a href="https://arxiv.org/abs/{0}">{1} (arXiv:{0})</a>').format(number, title)


def listed(items: Sequence[str]) -> Markup:
    """A list of lines of text or markup."""
    line = Markup("<li>{}</li>").format
    return Markup("<ul>{}</ul>").format(Markup().join(map(line, items)))


def command(text: str) -> Markup:
    """A command line, to be copied."""
    return Markup("<pre class='command'>{}</pre>").format(text)


def folded(title: str, body: str, *, preformatted: bool = False, opened: bool = False) -> Markup:
    """A block that opens and closes on a click: markup, or any text as it stands."""
    # Both escape text and leave markup as it is.
    inner = Markup("<pre>{}</pre>").format(body) if preformatted else escape(body)
    start = Markup("<details open>" if opened else "<details>")
    return start + Markup("<summary>{}</summary>{}</details>").format(title, inner)


def bars(
    group: Sequence[Rollout],
    *,
    texts: Mapping[str, str] | None = None,
    third: tuple[str, Mapping[str, float]] | None = None,
) -> Markup:
    """Each rollout's GRPO and GDPO advantage, one below the other, in the order of the group.

    Args:
      group: what `compare` returned.
      texts: the completions by the rollouts' names, any text; shown on a click.
      third: another estimator's name and its advantages by the rollouts' names, shown below
        the two.
    """
    name, others = third or ("", {})
    known = [a for each in group for a in (each.grpo, each.gdpo)]
    # At least 1, so that groups that teach nothing look like it.
    largest = max([1.0, *map(abs, [*known, *others.values()])])
    rows = []
    for each in group:
        # A letter where GRPO takes it for equal to another.
        told = "collapse" if each.split else "tie in both"
        tie = Markup('<span class="tie">{} {}</span>').format(told, each.tie) if each.tie else ""
        label = Markup("<strong>{}</strong> <code>{}</code>{}").format(
            each.name, vector(each.rewards), tie
        )
        lines = [_bar("grpo", "GRPO", each.grpo, largest), _bar("gdpo", "GDPO", each.gdpo, largest)]
        if each.name in others:
            lines.append(_bar("third", name, others[each.name], largest))
        # By data-rollout, and the bars' data-grpo and data-gdpo, tests read what the page shows.
        rows.append(
            Markup('<div class="row {}" data-rollout="{}">{}{}</div>').format(
                "collapsed" if each.split else "",
                each.name,
                folded(label, texts[each.name], preformatted=True) if texts else label,
                Markup().join(lines),
            )
        )
    return Markup().join(rows)


def _bar(kind: str, name: str, advantage: float, largest: float) -> Markup:
    # From the middle of the track, whose halves are 50 % of it each.
    width = 50.0 * abs(advantage) / largest
    left = 50.0 if advantage >= 0 else 50.0 - width
    return Markup(
        '<div class="bar {0}"><span>{1}</span><span class="track">'
        '<i style="left:{2:.2f}%;width:{3:.2f}%"></i></span>'
        '<b data-{0}="{4:.6f}">{4:+.3f}</b></div>'
    ).format(kind, name, left, width, advantage)


def ties(group: Sequence[Rollout], keys: Sequence[str]) -> Markup:
    """Two tables: how much each method tells apart, and for one pair of each tie why."""
    counts = [len({each.rewards for each in group})]
    for advantages in ([each.grpo for each in group], [each.gdpo for each in group]):
        counts.append(max(levels(advantages)) + 1)  # levels are numbered from 0
    found = table(["different rewards", "GRPO advantages", "GDPO advantages"], [counts])
    rows = [
        [
            each.tie,
            f"{each.name} {vector(each.rewards)}",
            number(each.score),  # the same in both rows of a pair: all that GRPO sees
            *[f"{term:+.3f}" for term in each.terms],
            f"{sum(each.terms):+.3f}",
        ]
        for pair in tied_pairs(group)
        for each in pair
    ]
    head = ["tie", "rollout", "GRPO's sum", *[f"{key}, normalised" for key in keys], "GDPO's sum"]
    return found + table(head, rows) if rows else found


def table(head: Sequence[str], rows: Sequence[Sequence[object]], *, prose: bool = False) -> Markup:
    """A table of plain text that scrolls where it is too wide; prose is wrapped."""

    def line(tag: str, cells: Sequence[object]) -> Markup:
        cell = Markup(f"<{tag}>{{}}</{tag}>")
        return Markup("<tr>{}</tr>").format(Markup().join(map(cell.format, cells)))

    return Markup('<div class="{}"><table><thead>{}</thead><tbody>{}</tbody></table></div>').format(
        "wide prose" if prose else "wide",
        line("th", head),
        Markup().join(line("td", row) for row in rows),
    )


def gaps(values: Tensor) -> Markup:
    """`gaps_of_a_trade` as a table; the larger the gap, the stronger its colour."""
    largest = float(values.abs().max()) or 1.0
    head = "".join(f"<th>{n}</th>" for n in range(1, len(values) + 1))
    rows = []
    for n1, row in enumerate(values.tolist(), start=1):
        cells = []
        for gap in row:
            equal = abs(gap) <= DISTINCT_TOLERANCE
            color = "--gx-gdpo" if gap > 0 else "--gx-grpo"
            # 60 % at most, over which the number can still be read.
            share = 0 if equal else round(60 * abs(gap) / largest)
            cells.append(
                f'<td style="background:color-mix(in srgb, var({color}) {share}%, transparent)">'
                f"{'<strong>=</strong>' if equal else f'{gap:+.1f}'}</td>"
            )
        rows.append(f"<tr><th>{n1}</th>{''.join(cells)}</tr>")
    return Markup(
        f'<div class="wide gaps"><table><thead><tr><th>n₁\\n₂</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )
