"""The report of `inferno bench --gpu-report`: speed and errors of installed plugins on a device.

Sections run one after the other, each in its own process. They measure what plugins declare:
attention backends, kernel providers, quantization schemes, sizes of architectures. This module
imports no torch: the sections do.
"""

from inferno.gpu_report.parent import ReportPlan, make_report, plan_of, sections_of
from inferno.gpu_report.report import GpuReport, Section, SectionResult, to_json, to_markdown

__all__ = [
    "ReportPlan",
    "GpuReport",
    "Section",
    "SectionResult",
    "make_report",
    "plan_of",
    "sections_of",
    "to_json",
    "to_markdown",
]
