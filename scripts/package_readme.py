"""The README of the package page, whose reader has no repository: the build calls this hook (``pyproject.toml``).

A relative link leads nowhere there. Where ``project.urls`` names a site of the documentation, links lead to its pages;
where it names none, they become the names of files, all of which are in the source archive.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hatchling.metadata.plugin.interface import MetadataHookInterface

RELATIVE = re.compile(r"(?P<picture>!?)\[(?P<words>[^\]]*)\]\((?P<target>(?!https?:|mailto:|#)[^)\s]+)\)")
"""A link or a picture whose address is relative."""
_NOTE = "*Names in brackets are files of the source archive.*\n\n"


def package_readme(readme: str, site: str | None) -> str:
    """Returns the README without relative links.

    Args:
        site: Address of the documentation's site, as ``scripts/docs_site.py`` builds it; None if there is none.
    """

    def absolute(link: re.Match[str]) -> str:
        page, _, part = link["target"].removeprefix("docs/").partition("#")
        address = f"{site.rstrip('/')}/{re.sub(r'[.]md$', '.html', page)}" if site else ""
        if site:
            return f"{link['picture']}[{link['words']}]({address}{f'#{part}' if part else ''})"
        # A picture's words describe it; what they describe can't be shown.
        return f"*{link['words']}*" if link["picture"] else f"{link['words']} (`{link['target'].partition('#')[0]}`)"

    made = RELATIVE.sub(absolute, readme)
    # Below the heading, before the first link.
    return made if site else made.replace("\n\n", f"\n\n{_NOTE}", 1)


def get_metadata_hook() -> type[MetadataHookInterface]:
    """Returns the hook; hatchling asks for it, and is needed for a build alone."""
    from hatchling.metadata.plugin.interface import MetadataHookInterface

    class ReadmeHook(MetadataHookInterface):
        """Sets the field ``readme`` of the package's metadata."""

        def update(self, metadata: dict[str, Any]) -> None:
            """Adds the README to the other fields."""
            readme = (Path(self.root) / "README.md").read_text("utf-8")
            text = package_readme(readme, metadata.get("urls", {}).get("Documentation"))
            metadata["readme"] = {"content-type": "text/markdown", "text": text}

    return ReadmeHook
