"""One end of a link, as the need says."""

from __future__ import annotations

from inferno.contracts import Mover, StoreIndex, StoreNeed
from inferno_disaggregated.address import own_folder, parse, token_of
from inferno_disaggregated.client import Client
from inferno_disaggregated.decoding import Decoding
from inferno_disaggregated.prefilling import Prefilling
from inferno_disaggregated.server import Server


def build(need: StoreNeed) -> tuple[StoreIndex, Mover]:
    """Return the index and the mover of an end. Raises OptionError if the prefilling end cannot
    listen."""
    assert need.link is not None, "it refuses to be without"
    link, address = need.link, parse(need.link.url)
    token = token_of(link, address)
    if link.role == "prefill":
        server = Server(address, token, need.layout, link.buffer)
        prefilling = Prefilling(need, server, link.buffer)
        return prefilling, prefilling
    if address.path is not None:
        own_folder(address.path)
    client = Client(address, link.url, token, need.layout, need.sizes)
    decoding = Decoding(need, link, client)
    return decoding, decoding
