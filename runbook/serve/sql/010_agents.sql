-- Heartbeats live in memory; here is what has to outlive the server. Of secrets only SHA-256: we drew them ourselves.
CREATE TABLE agents (
  name TEXT PRIMARY KEY,
  token TEXT NOT NULL UNIQUE,
  enrolled_at REAL NOT NULL,
  enrolled_by TEXT NOT NULL,
  revoked_at REAL,
  draining INTEGER NOT NULL DEFAULT 0,
  version TEXT NOT NULL DEFAULT '',
  hostname TEXT NOT NULL DEFAULT '',
  address TEXT NOT NULL DEFAULT ''
);

CREATE TABLE enrolments (
  secret TEXT PRIMARY KEY,
  name TEXT,                -- the only node that may use it, which it then replaces; NULL: any new one
  made_by TEXT NOT NULL,
  expires_at REAL NOT NULL
);

CREATE TABLE agent_incarnations (
  name TEXT NOT NULL REFERENCES agents (name) ON DELETE CASCADE,
  incarnation TEXT NOT NULL,
  at REAL NOT NULL,
  PRIMARY KEY (name, incarnation)
);

CREATE TABLE agent_states (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  name TEXT NOT NULL,
  at REAL NOT NULL,
  state TEXT NOT NULL
);
CREATE INDEX agent_states_by_name ON agent_states (name, id);
