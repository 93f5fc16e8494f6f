-- Shared limits and who uses them.  Runs before the new code; safe while old code runs.

-- Nothing here is an authority: whoever uses a limit says so again and again.  So nothing of it must survive a crash, and
-- a turn waits for no disk.
CREATE UNLOGGED TABLE noetl.shared_limit (
    tenant_id        text NOT NULL,
    organization_id  text NOT NULL,
    name             text NOT NULL,
    -- When the next permit of the rate is due, in seconds of this database's clock.
    next_at          double precision NOT NULL,
    -- What an execution that comes anew is taken to have had.
    share            bigint NOT NULL,
    dealt            bigint NOT NULL,
    -- When the last turn was, and since when everybody could say what they hold.
    turned_at        double precision NOT NULL,
    opened_at        double precision NOT NULL,
    PRIMARY KEY (tenant_id, organization_id, name)
);

-- One row for each execution at a session.  It counts while the session is alive: there is no other end of it.
CREATE UNLOGGED TABLE noetl.limit_lease (
    tenant_id        text NOT NULL,
    organization_id  text NOT NULL,
    name             text NOT NULL,
    session_id       bigint NOT NULL,
    execution_id     bigint NOT NULL,
    granted          bigint NOT NULL,
    returned         bigint NOT NULL,
    asked            bigint NOT NULL,
    served           bigint NOT NULL,
    dealt_at         bigint NOT NULL,
    rate             double precision,
    concurrency      integer,
    heard_at         double precision NOT NULL,
    PRIMARY KEY (tenant_id, organization_id, name, session_id, execution_id)
);

-- One row that is there from the beginning and goes with everything else when the database crashes or another one stands
-- in for it: without it the books were lost, with it a limit that is not in them is used for the first time.
CREATE UNLOGGED TABLE noetl.limit_books (
    is_one           boolean PRIMARY KEY CHECK (is_one),
    opened_at        double precision NOT NULL
);
INSERT INTO noetl.limit_books (is_one, opened_at) VALUES (true, 0);
