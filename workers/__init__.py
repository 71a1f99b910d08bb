"""Who drains the queue."""
