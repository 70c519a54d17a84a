-- What is searched of run folders, which stay the truth: a row is made again when the folder's files have changed.
CREATE TABLE runs (
  id TEXT PRIMARY KEY,
  seen TEXT NOT NULL,          -- sizes and times of the files that the row was made from
  began REAL NOT NULL,
  seconds REAL,
  playbook TEXT NOT NULL,
  inventory TEXT NOT NULL,
  verdict TEXT NOT NULL,       -- of the run; empty while it has none
  stopped_at TEXT NOT NULL,
  causes TEXT NOT NULL,        -- each between blanks, as are the nodes
  nodes TEXT NOT NULL,
  person TEXT NOT NULL,
  job TEXT NOT NULL,
  run_group TEXT NOT NULL
);
CREATE INDEX runs_by_time ON runs (began DESC, id DESC);
CREATE INDEX runs_by_group ON runs (run_group, began DESC);
