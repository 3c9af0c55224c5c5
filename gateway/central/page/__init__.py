"""The page of the central ledger: server-rendered, with a session of its own (LED-3, LED-5, SEC-5).

It reads through the same queries as the API and shows what the reader's token may see. Must not write to the ledger
but by pulling.
"""

from gateway.central.page.desk import Desk
from gateway.central.page.endpoints import page_endpoints

__all__ = ["Desk", "page_endpoints"]
