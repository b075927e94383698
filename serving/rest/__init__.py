"""The services over HTTP and JSON: the same methods, the same messages, for whoever speaks no gRPC."""
