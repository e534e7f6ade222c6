"""A job's summary for people."""

from collections.abc import Mapping

from corun_pd.batch.line import Json

__all__ = ["summary_table"]

#: In the JSON alone.
_LEFT_OUT = frozenset({"contract", "instances", "instances_left"})


def summary_table(summary: Mapping[str, Json]) -> str:
    """Two columns, then a row for each instance. Values are whole at any width: digests are to be copied."""
    rows = [(name, _show(value)) for name, value in summary.items() if name not in _LEFT_OUT]
    instances = summary.get("instances")
    for row in instances if isinstance(instances, list) else []:
        if isinstance(row, dict):
            facts = {
                key: value for key, value in row.items() if key != "instance_id" and value not in (None, 0)
            }
            rows.append((f"  {row['instance_id']}", _show(facts)))
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(f"{name:<{width}}{value}" for name, value in rows)


def _show(value: Json | Mapping[str, Json]) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_show(item)}" for name, item in value.items())
    if isinstance(value, list):
        return "; ".join(map(_show, value))
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:,}"
