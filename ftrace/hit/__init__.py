"""What runs when a traced function is entered or returns, and what waits for it."""
