"""Steps from one format of the docket to the next, by Alembic; :mod:`serving.docket.schema` takes them."""
