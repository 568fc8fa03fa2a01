"""What runs when a probe fires: native records, the trap, the handlers of a place, the return of a call."""
