#!/usr/bin/env python3
"""The curve of scheduler.csv as an SVG: µs a unit over the number of units, both axes logarithmic."""
import csv
import math
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 360, 60, 150, 30, 50
COLOURS = ["#1f77b4", "#d62728", "#2ca02c"]
LOWEST, HIGHEST = 1.0, 100.0  # µs
BUDGET = 20.0  # µs a unit that the scheduler may cost


def scale(value, low, high, begin, end):
    share = (math.log10(value) - math.log10(low)) / (math.log10(high) - math.log10(low))
    return begin + share * (end - begin)


def x_of(units):
    return scale(units, 1e3, 1e6, LEFT, WIDTH - RIGHT)


def y_of(us):
    return scale(min(max(us, LOWEST), HIGHEST), LOWEST, HIGHEST, HEIGHT - BOTTOM, TOP)


def text(x, y, words, anchor="middle", colour="#333"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{words}</text>'


def axes():
    parts = []
    for power in range(3, 7):
        x = x_of(10**power)
        parts.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        parts.append(text(x, HEIGHT - BOTTOM + 18, f"{10**power:,}"))
    for us in (1, 2, 5, 10, 20, 50, 100):
        y = y_of(us)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(text(LEFT - 8, y + 4, us, "end"))
    y = y_of(BUDGET)
    parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="#888" stroke-dasharray="4"/>')
    parts.append(text(WIDTH - RIGHT + 6, y + 4, "budget", "start", "#888"))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "units"))
    parts.append(text(LEFT, TOP - 12, "µs of Queue::handle a unit", "start"))
    return parts


def main(source, target):
    series = {}
    with open(source, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            name = f"{row['searches']} searches, {row['workers']} workers"
            point = (float(row["units"]), float(row["handle_us_per_unit"]))
            series.setdefault(name, []).append(point)
    parts = axes()
    for colour, (name, points) in zip(COLOURS, series.items()):
        line = " ".join(f"{x_of(units):.1f},{y_of(us):.1f}" for units, us in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>')
        units, us = points[-1]
        parts.append(text(x_of(units) + 6, y_of(us) + 4, name, "start", colour))
    body = "\n".join(parts)
    with open(target, "w", encoding="utf-8") as file:
        file.write(
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
            f'font-family="sans-serif" font-size="11">\n'
            f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
