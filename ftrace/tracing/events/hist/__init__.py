"""Hist triggers: histograms of events, which count hits by key and show the counts as text."""
