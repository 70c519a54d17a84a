-- Times are seconds since 1970. Of secrets only hashes are kept: scrypt of passwords, SHA-256 of what we drew ourselves.
CREATE TABLE people (
  name TEXT PRIMARY KEY,
  role TEXT NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),
  password TEXT,            -- salt and hash, NULL: only by a login link
  created_at REAL NOT NULL
);

CREATE TABLE sessions (
  hash TEXT PRIMARY KEY,
  person TEXT NOT NULL REFERENCES people (name) ON DELETE CASCADE,
  origin TEXT NOT NULL,     -- https://host:port that it was made for; it holds nowhere else
  created_at REAL NOT NULL,
  expires_at REAL NOT NULL
);

CREATE TABLE login_links (
  hash TEXT PRIMARY KEY,
  person TEXT NOT NULL REFERENCES people (name) ON DELETE CASCADE,
  expires_at REAL NOT NULL
);

CREATE TABLE tokens (
  id TEXT PRIMARY KEY,
  hash TEXT NOT NULL UNIQUE,
  person TEXT NOT NULL REFERENCES people (name) ON DELETE CASCADE,
  role TEXT NOT NULL CHECK (role IN ('viewer', 'operator', 'admin')),  -- at most this, and at most the person's
  purpose TEXT NOT NULL,
  created_at REAL NOT NULL
);

CREATE TABLE audit (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  at REAL NOT NULL,
  person TEXT NOT NULL,     -- stays when the person goes
  address TEXT NOT NULL,    -- of the client; 'command line' where it was that
  what TEXT NOT NULL,
  path TEXT NOT NULL,
  status INTEGER NOT NULL
);
