"""Writes the page of guards."""

from __future__ import annotations

from tests.fault.guards.page import PAGE, guards_markdown
from tests.fault.guards.table import GUARDS

if __name__ == "__main__":
    PAGE.write_text(guards_markdown(GUARDS), "utf-8")
