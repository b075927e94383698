"""Audits the docket by recomputing everything that it claims, and sends its checkpoints to external witnesses."""
