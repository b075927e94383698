"""The court as a service: settings, wiring, record store, gRPC server, command line."""

from importlib.metadata import version

SOFTWARE = version("memecourt")
