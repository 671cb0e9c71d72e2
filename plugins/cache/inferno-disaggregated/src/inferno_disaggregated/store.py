"""One end of a link, as the need says."""

from __future__ import annotations

from inferno.contracts import Mover, StoreIndex, StoreNeed
from inferno_disaggregated.address import own_folder, own_of, parse_all, token_of
from inferno_disaggregated.client import Client, News
from inferno_disaggregated.decoding import Decoding
from inferno_disaggregated.instances import Instance
from inferno_disaggregated.mailbox import Mailbox
from inferno_disaggregated.prefilling import Prefilling
from inferno_disaggregated.server import Server


def build(need: StoreNeed) -> tuple[StoreIndex, Mover]:
    """Return the index and the mover of an end. Raises OptionError if the prefilling end cannot
    listen."""
    assert need.link is not None, "it refuses to be without"
    link = need.link
    if link.role == "prefill":
        address = own_of(parse_all(link.url))
        server = Server(address, token_of(link, address), need.layout, link.buffer)
        prefilling = Prefilling(need, server, link.buffer)
        return prefilling, prefilling
    each = [parse_all(url) for url in (link.url, *link.others)]
    tokens = [{url: token_of(link, address) for url, address in at.items()} for at in each]
    for address in (address for at in each for address in at.values()):
        if address.path is not None:
            own_folder(address.path)
    news = Mailbox[News]()
    instances = [
        Instance(
            tuple(
                Client(address, url, known[url], need.layout, need.sizes, news)
                for url, address in at.items()
            )
        )
        for at, known in zip(each, tokens, strict=True)
    ]
    decoding = Decoding(need, link, instances, news)
    return decoding, decoding
