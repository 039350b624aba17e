"""What keeps a recorded run from being faster, in words, and what would help, predicted."""

from paceline.studies.findings.find import find
from paceline.studies.findings.finding import Finding, Kind, Remedy

__all__ = ["Finding", "Kind", "Remedy", "find"]
