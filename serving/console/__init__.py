"""The console: the pages on which people read trials, and review them.

Starlette serves them, Jinja2 writes them, htmx (``static/htmx.min.js``, version 2.0.11, its licence beside it) renews
what changes on them; without JavaScript everything can be read all the same. Nothing is fetched from another host.
"""
