"""Native stack walks."""
