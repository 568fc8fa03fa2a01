"""Histograms of events: hist triggers, which count hits under keys and show them as text."""
