"""The report of the demo: one page of HTML with a picture in it."""

from __future__ import annotations

from html import escape
from typing import Any

Rows = list[dict[str, Any]]

WIDTH, HEIGHT, LEFT, TOP, FOOT = 720, 300, 44, 16, 34
HIGHEST = 1000
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1c2733; max-width: 760px; margin: 40px auto; padding: 0 16px }
h1 { font-size: 22px } h2 { font-size: 16px; margin-top: 32px } table { border-collapse: collapse }
td, th { padding: 3px 14px 3px 0; text-align: right } td:first-child, th:first-child { text-align: left }
.ok { color: #17705a } .broken { color: #a8431f } code { font-size: 12px; overflow-wrap: anywhere }
"""


def main(monthly: Rows, quarantined: Rows, rules: Rows, dataset: str) -> dict[str, object]:
    months = sorted(monthly, key=lambda row: row["month"])
    return {
        "monthly": months,
        "rules": rules,
        "quarantined": quarantined,
        "html": page(months, quarantined, rules, dataset),
    }


def page(months: Rows, quarantined: Rows, rules: Rows, dataset: str) -> str:
    return "\n".join(
        [
            "<!doctype html><html lang=en><meta charset=utf-8><title>Vital signs</title>",
            f"<style>{STYLE}</style>",
            "<h1>Vital signs by month</h1>",
            picture(months),
            "<p>The bar spans the lowest and the highest value of a month, the dot is their average.</p>",
            "<h2>Months</h2>",
            table(months),
            "<h2>Quality</h2>",
            "<ul>",
            *(rule_line(rule) for rule in rules),
            "</ul>",
            "<h2>Set aside as implausible</h2>" if quarantined else "",
            table([{key: row[key] for key in ("id", "patient", "value")} for row in quarantined]),
            f"<p>The rows as Parquet: <code>{escape(dataset)}</code></p></html>",
        ]
    )


def picture(months: Rows) -> str:
    step = (WIDTH - LEFT) / max(1, len(months))
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT + TOP + FOOT}" width="100%" role="img" aria-label="Values by month">']
    for value in range(0, HIGHEST + 1, 250):
        y = height_of(value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH}" stroke="#dfe5ea"/>')
        parts.append(
            f'<text x="{LEFT - 8}" y="{y + 4:.1f}" font-size="11" fill="#66727d" text-anchor="end">{value}</text>'
        )
    for number, row in enumerate(months):
        x = LEFT + (number + 0.5) * step
        top, bottom = height_of(row["highest"]), height_of(row["lowest"])
        parts.append(
            f'<rect x="{x - 9:.1f}" y="{top:.1f}" width="18" height="{bottom - top + 1:.1f}" rx="4" fill="#9cc7d8"/>'
            f'<circle cx="{x:.1f}" cy="{height_of(row["average"]):.1f}" r="5" fill="#1f5f7a"/>'
            f'<text x="{x:.1f}" y="{TOP + HEIGHT + 20}" font-size="11" fill="#66727d" text-anchor="middle">'
            f"{escape(row['month'][2:])}</text>"
        )
    return "".join([*parts, "</svg>"])


def height_of(value: float) -> float:
    return TOP + HEIGHT * (1 - value / HIGHEST)


def rule_line(rule: dict[str, Any]) -> str:
    kind = "ok" if rule["met"] else "broken"
    words = "kept" if rule["met"] else f"broken by {rule['broken']} of {rule['rows']} rows"
    return f'<li>{escape(rule["name"])}: <span class="{kind}">{words}</span></li>'


def table(rows: Rows) -> str:
    if not rows:
        return ""
    names = list(rows[0])
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(f"<tr>{''.join(f'<td>{escape(str(row[name]))}</td>' for name in names)}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"
