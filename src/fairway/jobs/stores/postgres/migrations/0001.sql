-- The first layout. `fw.` is replaced by the schema.
--
-- A job is one row of `job` while it lives. Whether it is ready, blocked or leased is told by a row
-- in the small tables of those names, so that claiming never rewrites the job itself; `job.status`
-- only tells the two ways of being parked apart. What has ended moves to `history`.

create function fw.now_() returns timestamptz language sql stable
    return now();

create table fw.lane (
    id int generated always as identity primary key,
    queue text not null,
    tenant text not null,
    band smallint not null,
    unique (queue, tenant, band)
);

create table fw.queue (
    name text primary key,
    paused boolean not null default false,
    concurrency int,
    rate_per_s float8,
    burst int not null default 1,
    tokens float8 not null default 0,
    refilled_at timestamptz not null default now()
);

create table fw.worker (
    id bigint generated always as identity primary key,
    name text not null,
    started_at timestamptz not null,
    expires_at timestamptz not null
);

create sequence fw.job_id;

create table fw.job (
    id bigint primary key,
    kind text not null,
    version int not null,
    step text not null,
    state bytea not null,
    lane int not null,
    priority smallint not null,
    attempt int not null default 0,
    crashes int not null default 0,
    max_attempts int not null,
    max_crashes int not null,
    status "char" not null default 'r',
    pkey text,
    strict boolean not null default false,
    ukey text,
    window_us bigint not null default 0,
    parent bigint,
    notify text,
    names text[],
    inbox int not null default 0,
    spawned boolean not null default false,
    timed_out boolean not null default false,
    cancelling boolean not null default false,
    trace text,
    progress bytea,
    error text,
    enqueued_at timestamptz not null
) with (fillfactor = 80);
-- No index names a column that a step changes: the commit of a step stays within its page.
create index job_of_parent on fw.job (parent) where parent is not null;
create index job_partition_key on fw.job (pkey, id) where pkey is not null;

create table fw.ready (
    lane int not null,
    id bigint not null,
    priority smallint not null,
    pkey text,
    strict boolean not null,
    since timestamptz not null,
    primary key (lane, id)
);

create table fw.blocked (
    pkey text not null,
    id bigint not null,
    lane int not null,
    priority smallint not null,
    strict boolean not null,
    since timestamptz not null,
    primary key (pkey, id)
);

create table fw.key_slot (
    pkey text primary key,
    id bigint not null
);

create table fw.lease (
    id bigint primary key,
    worker bigint not null,
    token bigint not null,
    lane int not null,
    claimed_at timestamptz not null
);

create table fw.timer (
    id bigint primary key,
    due timestamptz not null
);
create index timer_due on fw.timer (due, id);

create table fw.signal (
    id bigint generated always as identity primary key,
    job bigint not null,
    name text not null,
    payload bytea not null,
    dedup text
);
create index signal_job on fw.signal (job, id);
create unique index signal_dedup on fw.signal (job, dedup) where dedup is not null;

create table fw.unique_key (
    key text primary key,
    job bigint not null,
    until timestamptz not null
);

create table fw.cursor (
    name text primary key,
    epoch bigint not null,
    seq bigint not null
);

create table fw.history (
    id bigint not null,
    finished_at timestamptz not null,
    kind text not null,
    version int not null,
    step text not null,
    state bytea not null,
    lane int not null,
    priority smallint not null,
    attempt int not null,
    crashes int not null,
    max_attempts int not null,
    max_crashes int not null,
    status "char" not null,
    pkey text,
    strict boolean not null,
    ukey text,
    window_us bigint not null,
    parent bigint,
    notify text,
    trace text,
    progress bytea,
    result bytea,
    error text,
    enqueued_at timestamptz not null
) partition by range (finished_at);
create index history_id on fw.history (id);
create index history_parent on fw.history (parent) where parent is not null;
create index history_trouble on fw.history (id) where status in ('f', 'k');
create table fw.history_rest partition of fw.history default;

-- These tables turn over completely all the time: vacuum by count, at once and at full speed.
alter table fw.ready set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0, autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 50000);
alter table fw.lease set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0);
alter table fw.timer set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000,
    autovacuum_vacuum_cost_delay = 0);
alter table fw.key_slot set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);
alter table fw.blocked set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 2000,
    autovacuum_vacuum_cost_delay = 0);
alter table fw.job set (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_cost_delay = 0);

create table fw.schedule (
    name text primary key,
    spec text not null,
    paused boolean not null default false,
    handled_ns bigint not null
);

create table fw.firing (
    schedule text not null,
    at_ns bigint not null,
    noted_at timestamptz not null,
    job bigint,
    tries int not null default 0,
    primary key (schedule, at_ns)
);
create index firing_lost on fw.firing (noted_at) where job is null;
