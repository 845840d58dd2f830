"""store: what survives a restart. SQLite for rows and blobs, a folder for bodies that wait."""
