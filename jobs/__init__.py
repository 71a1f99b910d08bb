"""What makes a prompt durable and accountable: a ledger of all jobs, on disk, that survives the process."""
