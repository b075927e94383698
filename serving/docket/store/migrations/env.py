"""Entry point of Alembic: runs the steps in the transaction that :mod:`serving.docket.store.schema` passes."""

from alembic import context

attributes = context.config.attributes
# As batches: SQLite can change little of a table that is there, so that Alembic makes it anew.
context.configure(connection=attributes["connection"], version_table_schema=attributes["schema"], render_as_batch=True)
context.run_migrations()
