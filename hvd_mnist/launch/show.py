"""A Command for people and for programs: shell text to copy and paste, or JSON."""

from __future__ import annotations

import json
import shlex

from hvd_mnist.launch.job import Command

SCHEMA = 1
WIDTH = 110
MOST_ROWS = 64  # above, the placement is shown host by host


def as_shell(command: Command) -> str:
    """The command in a form that a shell runs: comments first, then one command over several lines."""
    words = [[f"{name}={_value(command, name)}"] for name in command.env]
    lines = [f"cd {shlex.quote(command.cwd)} &&", *_wrapped([["env", "-i"], *words]), *_wrapped(_grouped(command.argv))]
    return " \\\n    ".join(lines).replace("&& \\\n", "&&\n")


def as_text(command: Command) -> str:
    """What ``--dry-run`` prints: reasons and placement as comments, then the command. All of it is shell."""
    size, hosts = command.placement.size, len(command.placement.hosts)
    lines = [f"{size} rank{'s' if size > 1 else ''} on {hosts} host{'s' if hosts > 1 else ''}"]
    lines += [*command.reasons, "", *_table(command)]
    return "".join(f"# {line}".rstrip() + "\n" for line in lines) + as_shell(command) + "\n"


def as_json(command: Command) -> str:
    """One JSON object; ``schema`` rises when a key changes its meaning."""
    heading, *rows = command.placement.table_rows()
    keys = [name.replace(" ", "_") for name in heading]
    value = {
        "schema": SCHEMA,
        "launcher": command.launcher,
        "size": command.placement.size,
        "argv": list(command.argv),
        "env": {name: None if name in command.by_name else value for name, value in command.env.items()},
        "cwd": command.cwd,
        "shell": as_shell(command),
        "reasons": list(command.reasons),
        "placement": [
            {key: cell if key == "host" else int(cell) for key, cell in zip(keys, row, strict=True)} for row in rows
        ],
    }
    return json.dumps(value, indent=1)


def _value(command: Command, name: str) -> str:
    return f'"${name}"' if name in command.by_name else shlex.quote(command.env[name])


def _grouped(argv: tuple[str, ...]) -> list[list[str]]:
    """Words in groups that stay on one line: an option and its value."""
    groups: list[list[str]] = []
    for word in argv:
        quoted = shlex.quote(word)
        if groups and not word.startswith("-") and len(groups[-1]) == 1 and groups[-1][0].startswith("-"):
            groups[-1].append(quoted)
        else:
            groups.append([quoted])
    return groups


def _wrapped(groups: list[list[str]]) -> list[str]:
    lines: list[str] = []
    for group in groups:
        text = " ".join(group)
        if lines and len(lines[-1]) + len(text) < WIDTH:
            lines[-1] += f" {text}"
        else:
            lines.append(text)
    return lines


def _table(command: Command) -> list[str]:
    placement = command.placement
    rows = placement.table_rows() if placement.size <= MOST_ROWS else placement.host_rows()
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
