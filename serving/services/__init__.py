"""The gRPC services: requests in, verdicts, records and precedents out, errors as statuses."""
