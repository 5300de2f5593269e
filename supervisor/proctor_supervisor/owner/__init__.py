"""The owner's side: the Trio program that runs tasks, reads results and heartbeats, and holds the proofs."""
