-- The dedup key of a signal outlives it, and failures are forgotten later than successes.

create table fw.signal_key (
    job bigint not null,
    key text not null,
    consumed_at timestamptz,
    primary key (job, key)
);
create index signal_key_consumed on fw.signal_key (consumed_at) where consumed_at is not null;
create index signal_key_waiting on fw.signal_key (job) where consumed_at is null;
insert into fw.signal_key (job, key) select job, dedup from fw.signal where dedup is not null;

-- Jobs that failed or died lie apart from the others, whose days are dropped whole.
drop index fw.history_trouble;
alter table fw.history rename to history_by_day;
alter index fw.history_id rename to history_by_day_id;
alter index fw.history_parent rename to history_by_day_parent;

create table fw.history (like fw.history_by_day including defaults) partition by list (status);
create index history_id on fw.history (id);
create index history_parent on fw.history (parent) where parent is not null;

create table fw.history_failed partition of fw.history for values in ('f', 'k');
create index history_failed_finished on fw.history_failed (finished_at);
with moved as (
    delete from fw.history_by_day where status in ('f', 'k') returning *
)
insert into fw.history_failed select * from moved;
alter table fw.history attach partition fw.history_by_day default;
