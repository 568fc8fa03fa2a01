"""The hit path: native code that runs when a traced function is entered or returns, and waiting for it."""
