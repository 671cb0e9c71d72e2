"""The catalog: the offers of the installed plugins, and the one rule by which the kernel
chooses."""

from inferno.catalog.architectures import architecture_name, class_name, find_architecture
from inferno.catalog.catalog import ANY, Catalog
from inferno.catalog.discovery import GROUPS, load_catalog
from inferno.catalog.offers import KINDS, Choice, Offer, Plugin, Refusal, SetAside

__all__ = [
    "ANY",
    "GROUPS",
    "KINDS",
    "Catalog",
    "Choice",
    "Offer",
    "Plugin",
    "Refusal",
    "SetAside",
    "architecture_name",
    "class_name",
    "find_architecture",
    "load_catalog",
]
