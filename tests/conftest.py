"""Options of the suite."""


def pytest_addoption(parser):
    parser.addoption("--write-golden", action="store_true", help="rewrite the golden files, for review as a diff")
