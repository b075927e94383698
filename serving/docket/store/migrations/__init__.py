"""Steps from one format of the docket to the next, by Alembic; :mod:`serving.docket.store.schema` takes them."""
