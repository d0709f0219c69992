"""Pieces of HTML that reports are put together from: sections, tables, a head with its style.

A page needs no network, no scripts and no other file, and it prints.
"""

from __future__ import annotations

import datetime as dt
import html
from collections.abc import Iterable, Sequence

from posterase.version import __version__


def page_of(title: str, parts: Iterable[str], *, banner: str = "", date: dt.date | None = None) -> str:
    """A whole page: a banner above all else, its parts, and a footer with the date (default: today's)."""
    name, day = html.escape(title), date or dt.datetime.now(dt.UTC).date()
    head = (
        "<!doctype html>\n<html lang=en><head><meta charset=utf-8>"
        f'<meta name=viewport content="width=device-width,initial-scale=1"><title>{name}</title>'
        f"<style>{STYLE}</style></head><body><main><h1>{name}</h1>"
    )
    warning = f"<p class=private role=note>{html.escape(banner)}</p>" if banner else ""
    footer = f"<footer><p>Made on {day} by posterase {html.escape(__version__)}.</p></footer></main></body></html>\n"
    return "\n".join(part for part in (head, warning, *parts, footer) if part)


def section(title: str, inside: str) -> str:
    """A heading and what is under it."""
    return f"<section><h2>{html.escape(title)}</h2>{inside}</section>"


def bullets(lines: Iterable[str]) -> str:
    """A list of texts."""
    return f"<ul>{''.join(f'<li>{html.escape(line)}</li>' for line in lines)}</ul>"


def fact_table(facts: Iterable[tuple[str, str]]) -> str:
    """Names and what they are, side by side."""
    rows = "".join(f"<tr><th scope=row>{html.escape(a)}</th><td>{html.escape(b)}</td></tr>" for a, b in facts)
    return f"<table class=facts><tbody>{rows}</tbody></table>"


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with a caption and a head."""
    top = "".join(f"<th scope=col>{html.escape(each)}</th>" for each in head)
    body = "".join("<tr>" + "".join(f"<td>{html.escape(each)}</td>" for each in row) + "</tr>" for row in rows)
    return f"<table><caption>{html.escape(caption)}</caption><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def folded(summary: str, content: str) -> str:
    """What a click opens."""
    return f"<details><summary>{html.escape(summary)}</summary><div class=wide>{content}</div></details>"


def count(number: int, what: str) -> str:
    """`1 row`, `2 rows`."""
    return f"{number} {what}{'s' if number != 1 else ''}"


STYLE = """
:root{color-scheme:light dark;--ink:#1d2125;--soft:#565d66;--paper:#fff;--card:#f6f7f8;--line:#d3d7dc;--good:#00664b;
--bad:#a33d00;--before:#767d86;--after:#d55e00;--refit:#0072b2;--pass:#009e73;--fail:#9aa1a9}
@media (prefers-color-scheme:dark){:root{--ink:#e6e8ea;--soft:#a5acb5;--paper:#15181b;--card:#1d2125;--line:#3a4047;
--good:#4cc9a0;--bad:#ff9a5c;--before:#9aa1a9;--after:#ff8533;--refit:#56b4e9;--pass:#1fb98c;--fail:#6b727a}}
@page{size:A4;margin:14mm}
body{font:16px/1.55 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:0}
main{max-width:50rem;margin:2.5rem auto;padding:0 1.2rem}
h1{font-size:1.75rem;line-height:1.2;margin:0 0 1rem}
h2{font-size:1.15rem;margin:2.2rem 0 .6rem;padding-bottom:.25rem;border-bottom:1px solid var(--line)}
p,ul,ol{margin:.5rem 0}li{margin:.25rem 0}ul,ol{padding-left:1.3rem}
.verdict{font-size:1.1rem;background:var(--card);border-left:.35rem solid;border-radius:.3rem;padding:.9rem 1.1rem}
.verdict strong{display:block;font-size:1.2rem;margin-bottom:.2rem}
.accepted{border-color:var(--good)}.accepted strong{color:var(--good)}
.private{font-weight:600;color:var(--bad);border:2px solid var(--bad);border-radius:.3rem;padding:.6rem .9rem}
.refused{border-color:var(--bad)}.refused strong{color:var(--bad)}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.4rem 0}
caption{text-align:left;font-weight:600;padding:.3rem 0}
th,td{text-align:left;vertical-align:top;padding:.25rem 1.1rem .25rem 0}
thead th,tbody tr+tr{border-top:0}thead th{border-bottom:1px solid var(--line);font-size:.9rem;color:var(--soft)}
.facts th{min-width:9rem;font-weight:600}.facts td{overflow-wrap:anywhere}
.wide{overflow-x:auto;font-size:.92rem}.wide td{min-width:3.5rem}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(17rem,100%),1fr));gap:.6rem 1.6rem}
figure{margin:.8rem 0;max-width:27rem;break-inside:avoid}
figcaption{font-size:.9rem;color:var(--soft);margin-top:.2rem}
svg{width:100%;height:auto;overflow:visible}
svg text{font:11px system-ui,sans-serif;fill:var(--ink);stroke:var(--paper);stroke-width:3px;paint-order:stroke}
.axis,.limit{stroke:var(--soft);stroke-width:1}.limit{stroke-dasharray:4 3}.rail{stroke:var(--line);stroke-width:1}
.tick{stroke-width:2}.tick.before{stroke:var(--before)}.tick.refit{stroke:var(--refit)}
.curve{fill:none;stroke-width:2}.curve.before{stroke:var(--before)}.curve.after{stroke:var(--after)}
.curve.refit{stroke:var(--refit);stroke-dasharray:5 3}.area{fill:var(--before);opacity:.13}
.passed{fill:var(--pass)}.failed{fill:var(--fail)}.off{fill:var(--after)}
.dot.after{fill:var(--after)}
.error{stroke-width:2}.error.passed{stroke:var(--pass)}.error.off{stroke:var(--after)}
.key span{margin-right:1.3rem;white-space:nowrap}.key svg{width:24px;height:8px}
details{margin:.6rem 0;border:1px solid var(--line);border-radius:.3rem;padding:0 .8rem}
summary{cursor:pointer;padding:.45rem 0}
footer{font-size:.85rem;color:var(--soft);margin-top:2.5rem;border-top:1px solid var(--line)}
@media print{:root{color-scheme:light;--ink:#000;--soft:#444;--paper:#fff;--card:#fff;--line:#bbb;--good:#00664b;
--bad:#a33d00;--before:#767d86;--after:#d55e00;--refit:#0072b2;--pass:#009e73;--fail:#9aa1a9}
html{font-size:10.5px}body{font-size:1rem}main{margin:0;max-width:none;padding:0}h2{margin-top:1.2rem;break-after:avoid}
details{border:0;padding:0}details:not([open])>.wide{display:block}details::details-content{content-visibility:visible;display:block;height:auto}
tr,li{break-inside:avoid}}
"""
