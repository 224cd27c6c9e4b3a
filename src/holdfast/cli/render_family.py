"""The children of a run as a tree for people, and as objects for scripts."""

from __future__ import annotations

from uuid import UUID

from rich.text import Text
from rich.tree import Tree

from holdfast.cli.hints import spelled
from holdfast.cli.render_runs import run_object, state_text
from holdfast.insight.tree import Children


def family_tree(run_id: UUID, children: Children) -> Tree:
    """Draw the children of a run, and theirs."""
    tree = Tree(Text("children", "dim"), guide_style="dim")
    _grow(tree, run_id, children)
    return tree


def family_objects(children: Children) -> list[dict[str, object]]:
    """Return children for JSON: each a run, with its own children."""
    return [
        {**run_object(each.run), "children": family_objects(each.children)}
        for each in children.shown
    ]


def _grow(tree: Tree, run_id: UUID, children: Children) -> None:
    for each in children.shown:
        line = state_text(each.run).append(f" {each.key} ", "default")
        line.append(f"{each.run.handler} {each.run.run_id}", "dim")
        _grow(tree.add(line), each.run.run_id, each.children)
    if children.more:
        text = spelled(f"… {children.more:,} more: holdfast runs list --parent {run_id}")
        tree.add(Text(text, "dim"))
