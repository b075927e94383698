"""The court as a service: settings, wiring, record store, gRPC server, command line."""
