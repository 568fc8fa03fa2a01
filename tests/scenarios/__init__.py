"""Scenarios: scripts of API calls, replayed on our API and compared with the log that a kernel printed for them."""
