"""What the site does beyond MkDocs (mkdocs.yml, hooks): README is its first page, files of the repository are pages.

A document may link to any file of the repository, and on the repository's own pages that works. A site has pages only.
So README.md and README.zh-CN.md become pages, each file that a document links to becomes a page that shows it, and the
links are turned to those pages before MkDocs checks them: `mkdocs build --strict` finds every dead one.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

READMES = {"README.md": "index.md", "README.zh-CN.md": "index.zh-CN.md"}
PAGE_OF = dict(READMES)  # file of the repository -> page; on_files adds the sources
LINK = re.compile(r"(\]\(\s*)([^)#\s]+)")
LANGUAGES = {".py": "python", ".sh": "bash", ".yml": "yaml", ".yaml": "yaml", ".toml": "toml", ".h": "cpp"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    root = Path(config.config_file_path).parent
    for name, page in READMES.items():
        files.append(File.generated(config, page, content=(root / name).read_text(encoding="utf-8")))
    for page in list(files.documentation_pages()):
        for _, target in LINK.findall(page.content_string):
            path = _in_repository(page.src_uri, target)
            if path not in PAGE_OF and not path.startswith("docs/") and (root / path).is_file():
                PAGE_OF[path] = f"source/{path}.md"
                files.append(File.generated(config, PAGE_OF[path], content=_shown(path, root)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    def turned(link: re.Match[str]) -> str:
        path = _in_repository(page.file.src_uri, link[2])
        target = path.removeprefix("docs/") if path.startswith("docs/") else PAGE_OF.get(path)
        if "://" in link[2] or target is None:  # MkDocs says what is wrong with it, if anything is
            return link[0]
        return link[1] + posixpath.relpath(target, posixpath.dirname(page.file.src_uri) or ".")

    return markdown if page.file.src_uri.startswith("source/") else LINK.sub(turned, markdown)


def _in_repository(page: str, target: str) -> str:
    """The path, from the top of the repository, of what a page links to."""
    folder = "" if page in READMES.values() else posixpath.join("docs", posixpath.dirname(page))
    return posixpath.normpath(posixpath.join(folder, target))


def _shown(path: str, root: Path) -> str:
    text, fence = (root / path).read_text(encoding="utf-8"), "`" * 8
    return f"# {path}\n\n{fence}{LANGUAGES.get(Path(path).suffix, 'text')}\n{text}\n{fence}\n"
