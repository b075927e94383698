"""Entry point of Alembic: runs the steps in the transaction that :mod:`serving.docket.store.schema` passes."""

from alembic import context

given = context.config.attributes
context.configure(connection=given["connection"], version_table_schema=given["schema"], render_as_batch=True)
context.run_migrations()
