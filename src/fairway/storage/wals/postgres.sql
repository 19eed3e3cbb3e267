-- Every statement of the PostgreSQL log, by name. A line with a name and a purpose opens each.
--
-- A partition that is deleted and used again begins a new *life*. Entries and metadata belong to a
-- life, so a delete changes one row, the next append need not wait for the sweep, and what is left
-- of the old life can never be read by mistake. A life whose partition is NULL waits to be swept.
--
-- Names and votes are UTF-8 bytes, not text: text cannot hold a zero character, and bytes sort the
-- way the contract asks whatever the collation of the database is.

-- session: what every connection is set to; the answer names its backend, so it can be evicted.
-- A commit waits for the disk unless its transaction says otherwise.
-- Every statement here means to follow an index. Before a table that grows was analysed the planner
-- takes partitions for small, and would fetch and sort all of one to return its first entries
SELECT pid, backend_start,
       set_config('search_path', %(path)s, false),
       set_config('synchronous_commit', 'on', false),
       set_config('default_transaction_isolation', 'read committed', false),
       set_config('enable_seqscan', 'off', false),
       set_config('enable_bitmapscan', 'off', false),
       set_config('enable_sort', 'off', false)
FROM pg_stat_activity WHERE pid = pg_backend_pid()

-- exists: is there a store in this schema. From the catalog, since a cached search path is blind to
-- a schema that another connection has just made
SELECT EXISTS (SELECT FROM pg_tables WHERE schemaname = %(schema)s AND tablename = 'format')

-- create_lock: two first openers must not create the tables at once
SELECT pg_advisory_xact_lock(hashtextextended('fairway ' || %(schema)s, 0))

-- create: the tables of format 1
CREATE TABLE format (version bigint NOT NULL);
INSERT INTO format VALUES (1);
CREATE TABLE owner (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch bigint NOT NULL,          -- rises with every owner and is checked by every transaction
    holder text NOT NULL,           -- host/pid/unique, for people and error messages
    lease_end timestamptz NOT NULL, -- by the clock of the database
    groups bigint NOT NULL,         -- transactions committed by all owners so far
    inherited bigint NOT NULL,      -- the same when this owner took over
    backend_pid bigint,             -- the server's side of the owner's connection
    backend_start timestamptz
);
INSERT INTO owner (epoch, holder, lease_end, groups, inherited) VALUES (0, '', '-infinity', 0, 0);
CREATE TABLE partitions (
    life bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    partition bigint UNIQUE,
    last_key bigint NOT NULL,                -- of the tail; survives truncation and compaction
    top_key bigint NOT NULL,                 -- of the highest entry present, 0 if there is none
    last_term bigint NOT NULL,               -- of the same entry
    floor bigint NOT NULL DEFAULT 1,
    hard_term bigint,
    vote bytea
) WITH (fillfactor = 50);                    -- room on the page: each append updates its row
CREATE TABLE entries (
    life bigint NOT NULL,
    key bigint NOT NULL,
    term bigint NOT NULL,
    checksum bigint NOT NULL,
    payload bytea NOT NULL,
    PRIMARY KEY (life, key)
);
ALTER TABLE entries ALTER payload SET STORAGE EXTERNAL; -- compressing is the caller's business
CREATE TABLE meta (
    life bigint NOT NULL,
    name bytea NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (life, name)
);

-- format: which version wrote these tables
SELECT version FROM format

-- depose: end the backend of an owner whose time is up. It may hang in a transaction, and the row
-- that it holds would keep everybody else out
SELECT pg_terminate_backend(a.pid)
FROM owner o JOIN pg_stat_activity a ON a.pid = o.backend_pid AND a.backend_start = o.backend_start
WHERE %(takeover)s OR o.lease_end <= clock_timestamp()

-- claim: become the owner, if the lease has ended or by force. The row's lock orders it after every
-- transaction of the former owner: those that hold the row are waited for, later ones find the
-- epoch gone
UPDATE owner SET epoch = epoch + 1, holder = %(holder)s, inherited = groups,
       backend_pid = %(pid)s, backend_start = %(start)s,
       lease_end = clock_timestamp() + %(ttl_us)s * interval '1 microsecond'
WHERE %(takeover)s OR lease_end <= clock_timestamp()
RETURNING epoch, groups

-- holder: who has it, and for how long still
SELECT holder, epoch, (extract(epoch FROM lease_end - clock_timestamp()) * 1000)::bigint FROM owner

-- evict: end the backend of a connection we lost; it may not know, and hold the owner row
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid = %(pid)s AND backend_start = %(start)s

-- arrive: another backend is the owner's from now on. It waits for a transaction that still holds
-- the row under our epoch, so what `look` finds next is final
UPDATE owner SET backend_pid = %(pid)s, backend_start = %(start)s,
       lease_end = clock_timestamp() + %(ttl_us)s * interval '1 microsecond'
WHERE epoch = %(epoch)s

-- look: whose the log is, and how far the groups went
SELECT epoch, groups, inherited, holder FROM owner

-- renew: extend the lease while there is nothing to write
UPDATE owner SET lease_end = clock_timestamp() + %(ttl_us)s * interval '1 microsecond'
WHERE epoch = %(epoch)s RETURNING groups

-- release: end the lease now
UPDATE owner SET lease_end = '-infinity' WHERE epoch = %(epoch)s

-- begin: open the transaction of a group
BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE

-- unsynced: the commit will not wait for the disk; it survives our death but not the server's
SET LOCAL synchronous_commit = off

-- hold: check the epoch, count the group and renew the lease, holding the row until the commit
UPDATE owner SET groups = groups + 1,
       lease_end = clock_timestamp() + %(ttl_us)s * interval '1 microsecond'
WHERE epoch = %(epoch)s RETURNING groups

-- commit: from here on the outcome is the server's word
COMMIT

-- rollback: leave a transaction that will not be committed
ROLLBACK

-- tails: every partition, and the highest entry found beside the highest that should be there
SELECT p.partition, p.last_key, p.last_term, p.floor, p.top_key, coalesce(top.key, 0)
FROM partitions p LEFT JOIN LATERAL (
    SELECT e.key FROM entries e WHERE e.life = p.life ORDER BY e.key DESC LIMIT 1
) AS top ON true
WHERE p.partition IS NOT NULL

-- delete: end the life of partitions
UPDATE partitions SET partition = NULL WHERE partition = ANY (%(partitions)s)

-- truncate: remove the entries above a key; the last term is that of what remains below
WITH gone AS (
    DELETE FROM entries
    WHERE life = (SELECT life FROM partitions WHERE partition = %(partition)s) AND key > %(key)s
)
UPDATE partitions p SET last_key = %(key)s,
       top_key = coalesce((SELECT e.key FROM entries e WHERE e.life = p.life AND e.key <= %(key)s
                           ORDER BY e.key DESC LIMIT 1), 0),
       last_term = coalesce((SELECT e.term FROM entries e WHERE e.life = p.life AND e.key <= %(key)s
                             ORDER BY e.key DESC LIMIT 1), 0)
WHERE p.partition = %(partition)s AND p.last_key > %(key)s

-- touch: create the rows of new partitions and move the tails of all; a top key of 0 moves no term
INSERT INTO partitions AS p (partition, last_key, last_term, top_key)
SELECT * FROM unnest(%(partitions)s, %(last_keys)s, %(last_terms)s, %(top_keys)s)
ON CONFLICT (partition) DO UPDATE SET
    last_key = greatest(p.last_key, excluded.last_key),
    last_term = CASE WHEN excluded.top_key > 0 THEN excluded.last_term ELSE p.last_term END,
    top_key = greatest(p.top_key, excluded.top_key)

-- append: insert the entries of all partitions
INSERT INTO entries (life, key, term, checksum, payload)
SELECT p.life, e.key, e.term, e.checksum, e.payload
FROM unnest(%(partitions)s, %(keys)s, %(terms)s, %(checksums)s, %(payloads)s)
     AS e (partition, key, term, checksum, payload)
JOIN partitions p ON p.partition = e.partition

-- compact: remove the entries below a key
WITH gone AS (
    DELETE FROM entries
    WHERE life = (SELECT life FROM partitions WHERE partition = %(partition)s) AND key < %(key)s
)
UPDATE partitions p SET floor = %(key)s,
       top_key = CASE WHEN p.top_key < %(key)s THEN 0 ELSE p.top_key END,
       last_term = CASE WHEN p.top_key < %(key)s THEN 0 ELSE p.last_term END
WHERE p.partition = %(partition)s AND p.floor < %(key)s

-- remove: remove the entries in ranges of keys
DELETE FROM entries e USING unnest(%(firsts)s, %(lasts)s) AS r (first, last)
WHERE e.life = (SELECT life FROM partitions WHERE partition = %(partition)s)
  AND e.key BETWEEN r.first AND r.last

-- settle: note the highest entry present after a removal. A statement of its own: one that removes
-- does not see what is gone
UPDATE partitions p SET top_key = coalesce(top.key, 0), last_term = coalesce(top.term, 0)
FROM (SELECT 1) AS one LEFT JOIN LATERAL (
    SELECT e.key, e.term FROM entries e
    WHERE e.life = (SELECT life FROM partitions WHERE partition = %(partition)s)
    ORDER BY e.key DESC LIMIT 1
) AS top ON true
WHERE p.partition = %(partition)s

-- set_meta: set metadata names
INSERT INTO meta (life, name, value)
SELECT p.life, m.name, m.value
FROM unnest(%(partitions)s, %(names)s, %(values)s) AS m (partition, name, value)
JOIN partitions p ON p.partition = m.partition
ON CONFLICT (life, name) DO UPDATE SET value = excluded.value

-- drop_meta: delete metadata names. Joined by a subquery, so that both columns of the index serve
DELETE FROM meta USING unnest(%(partitions)s, %(names)s) AS m (partition, name)
WHERE meta.life = (SELECT p.life FROM partitions p WHERE p.partition = m.partition)
  AND meta.name = m.name

-- set_hard_state: replace term and vote
UPDATE partitions p SET hard_term = h.term, vote = h.vote
FROM unnest(%(partitions)s, %(terms)s, %(votes)s) AS h (partition, term, vote)
WHERE p.partition = h.partition

-- read: entries in rising order until the limit or the bytes are used up, but at least one
SELECT key, term, checksum, payload FROM (
    SELECT key, term, checksum, payload, row_number() OVER run AS place,
           sum(octet_length(payload)) OVER run AS bytes
    FROM entries
    WHERE life = (SELECT life FROM partitions WHERE partition = %(partition)s)
      AND key BETWEEN %(first)s AND %(last)s
    WINDOW run AS (ORDER BY key ROWS UNBOUNDED PRECEDING)
    ORDER BY key LIMIT %(limit)s
) AS found WHERE place = 1 OR bytes <= %(max_bytes)s ORDER BY key

-- read_backwards: the same in falling order
SELECT key, term, checksum, payload FROM (
    SELECT key, term, checksum, payload, row_number() OVER run AS place,
           sum(octet_length(payload)) OVER run AS bytes
    FROM entries
    WHERE life = (SELECT life FROM partitions WHERE partition = %(partition)s)
      AND key BETWEEN %(first)s AND %(last)s
    WINDOW run AS (ORDER BY key DESC ROWS UNBOUNDED PRECEDING)
    ORDER BY key DESC LIMIT %(limit)s
) AS found WHERE place = 1 OR bytes <= %(max_bytes)s ORDER BY key DESC

-- tail: where a partition ends
SELECT last_key, last_term, floor FROM partitions WHERE partition = %(partition)s

-- meta: one metadata value
SELECT value FROM meta
WHERE life = (SELECT life FROM partitions WHERE partition = %(partition)s) AND name = %(name)s

-- meta_scan: metadata in order of names; `before` is the first name that no longer has the prefix
SELECT name, value FROM meta
WHERE life = (SELECT life FROM partitions WHERE partition = %(partition)s)
  AND name > %(after)s AND name >= %(prefix)s AND name < %(before)s
ORDER BY name LIMIT %(limit)s

-- hard_state: term and vote last written
SELECT hard_term, vote FROM partitions
WHERE partition = %(partition)s AND hard_term IS NOT NULL

-- ended: is there a life to sweep
SELECT life FROM partitions WHERE partition IS NULL LIMIT 1

-- sweep: remove some rows of a life that has ended, entries first
WITH gone AS (
    DELETE FROM entries WHERE ctid = ANY (ARRAY(
        SELECT ctid FROM entries WHERE life = %(life)s ORDER BY key LIMIT %(limit)s))
    RETURNING 1
)
DELETE FROM meta WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM meta WHERE life = %(life)s ORDER BY name
    LIMIT %(limit)s - (SELECT count(*) FROM gone)))

-- forget_life: forget a life that has ended and of which nothing is left
DELETE FROM partitions
WHERE life = %(life)s AND partition IS NULL
  AND NOT EXISTS (SELECT FROM entries WHERE life = %(life)s)
  AND NOT EXISTS (SELECT FROM meta WHERE life = %(life)s)
