"""Helpers of tests of http."""


def url_of(server):
    return server.wait_for(lambda line: "http on http" in line).split("http on ")[1].strip()
