"""A server under load: clients, processes, overload and hostile traffic."""
