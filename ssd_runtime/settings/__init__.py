"""The configuration: schema, loading, and messages that name file and line."""
