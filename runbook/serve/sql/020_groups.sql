-- Every state of a group's file that this server wrote or met, the latest last. `person` is empty where somebody else wrote it.
CREATE TABLE group_versions (
  id INTEGER PRIMARY KEY,
  name TEXT NOT NULL,
  at REAL NOT NULL,
  person TEXT NOT NULL,
  what TEXT NOT NULL,
  hash TEXT NOT NULL,
  text TEXT NOT NULL
);
CREATE INDEX group_versions_by_name ON group_versions (name, id);
