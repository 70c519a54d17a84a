-- Groups that are to be started again once a run of theirs is over: a server that ends before leaves them to the next.
CREATE TABLE restarts (
  run TEXT PRIMARY KEY,
  run_group TEXT NOT NULL,
  person TEXT NOT NULL,
  at REAL NOT NULL,
  why TEXT                     -- it was not started again; NULL: it is waited for
);
