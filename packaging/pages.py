#!/usr/bin/env python3
"""A preprocessor of mdBook: adds a chapter for each page of docs/decisions, and points links that leave docs/ to the repository, whose
address is that of Cargo.toml. A link to a file that is not there is an error."""

import json
import pathlib
import posixpath
import re
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")


def main():
    if sys.argv[1:2] == ["supports"]:
        return
    _, book = json.load(sys.stdin)
    repository = tomllib.loads((ROOT / "Cargo.toml").read_text())["package"]["repository"]
    for chapter in chapters(book["items"]):
        if chapter["name"] == "Decisions":
            chapter["sub_items"] = [{"Chapter": decision(path)} for path in sorted((ROOT / "docs/decisions").glob("*.md"))]
    for chapter in chapters(book["items"]):
        if chapter["path"]:
            # index.md is README.md of the repository.
            folder = "." if chapter["path"] == "index.md" else posixpath.dirname("docs/" + chapter["path"])
            chapter["content"] = LINK.sub(lambda link: pointed(link, folder, chapter["path"], repository), chapter["content"])
    json.dump(book, sys.stdout)


def chapters(items):
    for item in items:
        if "Chapter" in item:
            yield item["Chapter"]
            yield from chapters(item["Chapter"]["sub_items"])


def decision(path):
    text = path.read_text()
    name = path.name[:4].lstrip("0") + " " + text.splitlines()[0].removeprefix("# ")
    page = "decisions/" + path.name
    return {"name": name.strip(), "content": text, "number": None, "sub_items": [], "path": page, "source_path": page,
            "parent_names": ["Decisions"]}


def pointed(link, folder, page, repository):
    target, anchor = link[1], link[2] or ""
    if "://" in target or target.startswith("mailto:"):
        return link[0]
    file = posixpath.normpath(posixpath.join(folder, target))
    if not (ROOT / file).exists():
        sys.exit(f"{page}: a link to {target}, which is not there")
    if file == "README.md":
        file = "docs/index.md"
    if file.startswith("docs/") and (ROOT / file).is_file():
        return f"]({posixpath.relpath(file, posixpath.dirname('docs/' + page))}{anchor})"
    kind = "tree" if (ROOT / file).is_dir() else "blob"
    return f"]({repository}/{kind}/HEAD/{file}{anchor})"


main()
