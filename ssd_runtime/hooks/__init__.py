"""How parts are added: hook specifications, the kinds of parts, registries, the plugin manager."""
