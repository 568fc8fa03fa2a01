"""Registration and dispatch tables: what turns patterns and handlers into probe lists at locations."""
