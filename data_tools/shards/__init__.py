"""The dataset format: manifest, tables and tar shards, with their readers, writers and verification."""
