"""What leaves the service as a file: a report to attach, a table to load."""
