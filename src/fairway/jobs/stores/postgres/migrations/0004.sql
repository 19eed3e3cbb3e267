-- What ended badly keeps what it waited for, so that a retry by hand can take it up.

alter table fw.history add column names text[];
alter table fw.history add column timed_out boolean not null default false;
alter table fw.history add column waited_until timestamptz;
