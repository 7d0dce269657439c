"""READMEs whose tables and verdicts come from the results files; everything between the marks is written here."""

from __future__ import annotations

import re
from pathlib import Path

from reproductions.claims import Claim
from reproductions.experiment import Collection, Experiment
from reproductions.store import Values, read, values

BEGIN, END = "<!-- results begin -->", "<!-- results end -->"


def claim_table(claims: list[Claim]) -> str:
    lines = ["| claim | where | ours | verdict |", "|---|---|---|---|"]
    lines += [f"| {c.claim} | {c.where} | {c.ours} | **{c.verdict}** |" for c in claims]
    return "\n".join(lines)


def provenance(content: Values) -> str:
    """Where and when, from the units."""
    units = content["units"].values()
    devices = sorted({unit["device"] for unit in units})
    torches = sorted({unit["versions"]["torch"] for unit in units})
    dates = sorted({unit["date"] for unit in units})
    seconds = sum(unit["seconds"] for unit in units)
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    where = f"{when}; {', '.join(devices)}; torch {', '.join(torches)}"
    return f"{where}; {seconds / 60:.1f} min in these units (what lay in the cache already is not counted)."


def unfinished(found: Experiment, content: Values) -> str:
    """What is still to be run, if anything."""
    wanted = found.units(found.config(content["quick"]))
    missing = [unit for unit in wanted if unit not in content["units"]]
    if not missing:
        return ""
    which = f"{missing[0]} to {missing[-1]}"
    return f"**Not all was run yet**: {len(missing)} of {len(wanted)} units are missing ({which})."


def section(found: Experiment, content: Values) -> str:
    """The part between the marks."""
    units = values(content)
    about = f"{provenance(content)} {unfinished(found, content)}".strip()
    parts = ["## Claims", claim_table(found.claims(units)), "## Numbers", about, found.tables(units)]
    return "\n\n".join(part.strip() for part in parts)


def filled(text: str, part: str, name: str = "") -> str:
    """``text`` with the part between its marks replaced; pages with several parts have marks with their names."""
    begin = BEGIN.replace(" -->", f": {name} -->") if name else BEGIN
    before, _, rest = text.partition(begin)
    _, _, after = rest.partition(END)
    if not rest or begin not in text or END not in rest:
        raise ValueError(f"the README lacks {begin} and {END}")
    return f"{before}{begin}\n{minus_signs(part)}\n{END}{after}"


def minus_signs(text: str) -> str:
    """Minus signs before negative numbers, instead of hyphens, and none before zero."""
    return re.sub(r"−(0(?:\.0+)?)(?![\d.])", r"\1", re.sub(r"(?<![\w`-])-(?=\d)", "−", text))


def summary(collection: Collection) -> str:
    """All claims of all experiments that have results."""
    parts = []
    for name in collection.names:
        path = collection.home / name / "results.json"
        if path.exists():
            found = collection.experiment(name)
            content = read(path)
            parts += [f"## [{found.title}]({name}/README.md)", claim_table(found.claims(values(content)))]
            parts += filter(None, [unfinished(found, content)])
        else:
            parts += [f"## [{collection.experiment(name).title}]({name}/README.md)", "Not run yet."]
    return "\n\n".join(parts)


def expected(folder: Path, part: str) -> str:
    return filled((folder / "README.md").read_text(), part)


def write(collection: Collection, name: str) -> None:
    """Fill the README of an experiment, and the one over all."""
    home = collection.home
    found, content = collection.experiment(name), read(home / name / "results.json")
    (home / name / "README.md").write_text(expected(home / name, section(found, content)))
    (home / "README.md").write_text(expected(home, summary(collection)))
    for path, part in found.elsewhere:
        path.write_text(filled(path.read_text(), part(values(content))))
    for path, name_of_part, part in found.passages:
        path.write_text(filled(path.read_text(), part(values(content)), name_of_part))
