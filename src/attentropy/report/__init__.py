"""What was measured, as files to read: figures and reports."""
