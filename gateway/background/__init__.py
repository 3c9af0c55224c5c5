"""What runs beside the requests: each service is a `run_once()` that returns counts, and one loop runs them all."""
