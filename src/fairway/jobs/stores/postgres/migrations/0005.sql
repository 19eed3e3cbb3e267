-- What is told of attempts, of workers and of what they know; traces to list jobs by. Attempts of
-- before are counted, as far as their jobs knew of them, and not told.

alter table fw.job add column runs int not null default 0;
update fw.job set runs = attempt + crashes where attempt + crashes > 0;

-- Who ran it last, and since when: of a job that is done there is no other note of that run.
alter table fw.history add column runs int not null default 0;
alter table fw.history add column ran_by bigint;
alter table fw.history add column started_at timestamptz;
update fw.history set runs = attempt + crashes where attempt + crashes > 0;

create index job_trace on fw.job (substring(trace, 4, 32)) where trace is not null;
create index history_trace on fw.history (substring(trace, 4, 32)) where trace is not null;

create table fw.attempt (
    job bigint not null,
    number int not null,
    step text not null,
    worker bigint not null,
    started_at timestamptz not null,
    ended_at timestamptz not null,
    fate text not null,
    error text,
    log bytea,
    primary key (job, number)
);

create table fw.kind (
    name text not null,
    version int not null,
    schema bytea,
    seen_at timestamptz not null,
    primary key (name, version)
);

alter table fw.worker add column beat_at timestamptz;
alter table fw.worker add column queues text;
alter table fw.worker add column kinds text;
