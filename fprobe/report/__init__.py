"""Reports: from records and counts to text. Nothing here captures anything, or needs the engine."""
