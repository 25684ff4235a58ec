"""What was measured, as files to read: figures, and reports that are one HTML file each."""

from attentropy.report.comparison import comparison_page as comparison_page
from attentropy.report.payload import scan_page as scan_page
from attentropy.report.run import run_page as run_page
