-- make_lines: those of these ready lines that are not there; waits for whoever makes the same
insert into fw.lane (queue, tenant, band, skill)
select * from unnest($1::text[], $2::text[], $3::smallint[], $4::text[])
    as w (queue, tenant, band, skill) order by queue, tenant, band, skill
on conflict do nothing

-- lines: the numbers of these ready lines
select l.id, l.queue, l.tenant, l.band, l.skill from fw.lane l
    join unnest($1::text[], $2::text[], $3::smallint[], $4::text[])
        as w (queue, tenant, band, skill) using (queue, tenant, band, skill)

-- place: which database this is, and whether the jobs are in it; a server began once
select current_database()::text, to_regclass('fw.job')::oid::bigint,
    (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint

-- wait_less: how long a caller's transaction waits for locks; from here on no longer than $1 ms
select s.before, set_config('lock_timeout', least(
    nullif(extract(epoch from s.before::interval) * 1000, 0), $1::int)::int::text, true)
from (select current_setting('lock_timeout') as before offset 0) s

-- wait_as_before: and from here on as the caller had it
select set_config('lock_timeout', $1::text, true)

-- known_lines: every ready line there is
select id, queue, tenant, band, skill from fw.lane

-- numbers: for jobs to come, in order
select nextval('fw.job_id') from generate_series(1, $1::int)

-- lock_wait: how long this transaction waits for each lock from here on, in milliseconds
select set_config('lock_timeout', $1::int::text, true)

-- numbers_and_lock_wait: the same two, in one
select nextval('fw.job_id'), set_config('lock_timeout', $2::int::text, true)
from generate_series(1, $1::int)

-- until: without a window not a moment beyond its job; transactions disagree about the time it is
case when w.window_us > 0 then fw.now_() + w.window_us * interval '1 microsecond'
    else '-infinity' end

-- lock_keys: unique keys, held until we commit; those that were not there stand for our jobs now
insert into fw.unique_key as k (key, job, until)
select w.key, w.job, {until}
from unnest($1::text[], $2::bigint[], $3::bigint[]) as w (key, job, window_us) order by w.key
on conflict (key) do update set job = k.job where false
returning key

-- take_keys: of unique keys that we hold, those that stand for nothing any more stand for our jobs
with taken as (
    update fw.unique_key k
    set job = w.job, until = {until}
    from unnest($1::text[], $2::bigint[], $3::bigint[]) as w (key, job, window_us)
    where k.key = w.key and (k.job = w.job
        or k.until <= fw.now_() and not exists (select 1 from fw.job j where j.id = k.job))
    returning k.key, k.job
)
select key, job from taken
union all
select key, job from fw.unique_key
where key = any($1::text[]) and key <> all(array(select key from taken))

-- enqueue: jobs, and their places in line
with input as materialized (
    select coalesce(u.id, nextval('fw.job_id')) as id, u.ord, u.lane, u.state, {columns},
        case when u.at_us is null then fw.now_() + u.delay_us * interval '1 microsecond'
             else 'epoch'::timestamptz + u.at_us * interval '1 microsecond' end as due
    from unnest($1::bigint[], $2::int[], $3::bytea[], $4::bigint[], {arrays},
            {at}::bigint[])
        with ordinality as u (id, lane, state, delay_us, {columns}, at_us, ord)
), added as (
    insert into fw.job (id, lane, state, status, enqueued_at, {columns})
    select id, lane, state, case when due > fw.now_() then 's' else 'r' end, fw.now_(), {columns}
    from input
), queued as (
    insert into fw.ready (lane, id, priority, pkey, strict, since)
    select lane, id, priority, pkey, strict, fw.now_() from input where due <= fw.now_()
), timed as (
    insert into fw.timer (id, due) select id, due from input where due > fw.now_()
)
select id from input order by ord

-- enqueue_uniform: jobs that differ in their state alone, ready now
with input as materialized (
    select nextval('fw.job_id') as id, u.ord, u.state
    from unnest($1::bytea[]) with ordinality as u (state, ord)
), added as (
    insert into fw.job (id, lane, state, enqueued_at, {columns})
    select id, $2::int, state, fw.now_(), {values} from input
), queued as (
    insert into fw.ready (lane, id, priority, strict, since)
    select $2::int, id, {priority}::smallint, false, fw.now_() from input
)
select array_agg(id order by ord) from input

-- move_cursor: a reader's cursor, if it stood before the first of what comes with it
insert into fw.cursor as c (name, epoch, seq) values ($1, $2, $3)
on conflict (name) do update set epoch = excluded.epoch, seq = excluded.seq
    where (c.epoch, c.seq) < (excluded.epoch, $4::bigint)
returning true

-- cursor: how far a reader has come
select name, epoch, seq from fw.cursor where name = $1

-- register: a number for a worker, and the kinds that it knows
with known as (
    insert into fw.kind (name, version, schema, seen_at)
    select name, version, schema, fw.now_()
    from unnest($5::text[], $6::int[], $7::bytea[]) as k (name, version, schema)
    order by name, version
    on conflict (name, version) do update
        set schema = excluded.schema, seen_at = excluded.seen_at
)
insert into fw.worker (name, started_at, expires_at, beat_at, queues, kinds)
values ($1, fw.now_(), fw.now_() + $2::bigint * interval '1 microsecond', fw.now_(), $3, $4)
returning id

-- around: what is in the way of a job beside limits and workers
select coalesce((select q.paused from fw.queue q where q.name = l.queue), false) as paused,
    coalesce(
        (select k.id from fw.key_slot k where k.pkey = j.pkey and k.id <> j.id),
        (select e.id from fw.job e where j.strict and e.pkey = j.pkey and e.id < j.id
         order by e.id limit 1)) as holder,
    (select count(*) from fw.job c where c.parent = j.id and c.notify is null) as children
from fw.job j join fw.lane l on l.id = j.lane where j.id = $1

-- limits_seen: the limits of some queues, as they look now
select name, concurrency, rate_per_s, burst, tokens,
    (extract(epoch from fw.now_() - refilled_at) * 1000000)::bigint as since_us
from fw.queue
where name = any($1::text[]) and (concurrency is not null or rate_per_s is not null)
order by name desc

-- workers: all that are registered, and how many jobs each has
select w.id, w.name, w.expires_at > fw.now_() as alive, w.started_at, w.beat_at, w.expires_at,
    w.queues, w.kinds, coalesce(l.running, 0) as running
from fw.worker w left join (
    select worker, count(*) as running from fw.lease group by worker
) l on l.worker = w.id
order by w.id

-- kinds: all that a worker has known
select name, version, schema, seen_at from fw.kind order by name, version

-- unregister: a worker ends; what it still holds is the reaper's at once
with gone as (
    delete from fw.worker w where id = $1
        and not exists (select 1 from fw.lease l where l.worker = w.id)
)
update fw.worker set expires_at = fw.now_() where id = $1
    and exists (select 1 from fw.lease l where l.worker = $1)

-- durably: this transaction commits with a sync, also where claims do without; no weaker than it is
set_config('synchronous_commit', case current_setting('synchronous_commit') when 'off' then 'on'
    else current_setting('synchronous_commit') end, true)

-- claiming: the first jobs of ready lines, leased; $6 leaves their keys to advisory locks
limited as materialized (
    select name from fw.queue q
    where (concurrency is not null or rate_per_s is not null) and name <> all($7::text[])
        and (name = '*' or exists (
            select 1 from fw.lane l where l.id = any($3::int[]) and l.queue = q.name))
), want as (
    select w.lane, w.most, w.low, w.turn
    from unnest($3::int[], $4::int[], $5::bigint[]) with ordinality as w (lane, most, low, turn)
    where (select expires_at > fw.now_() from fw.worker where id = $1)
        and not exists (
            select 1 from fw.lane l join fw.queue q on q.name = l.queue
            where l.id = w.lane and q.paused
        )
        and not exists (
            select 1 from limited m
            where m.name = '*' or m.name = (select l.queue from fw.lane l where l.id = w.lane)
        )
), picked as materialized (
    select r.place, r.lane, r.id, r.pkey, r.strict, w.turn
    from want w cross join lateral (
        select ctid as place, lane, id, pkey, strict from fw.ready
        where lane = w.lane and id >= w.low order by id limit w.most
        for update skip locked
    ) r
), slot as (
    insert into fw.key_slot (pkey, id)
    select distinct on (p.pkey) p.pkey, p.id from picked p
    where p.pkey is not null and not $6::boolean and (not p.strict or not exists (
        select 1 from fw.job e where e.pkey = p.pkey and e.id < p.id))
    order by p.pkey, p.turn, p.id
    on conflict do nothing
    returning id, {durably}
), won as (
    select place, lane, id from picked
    where pkey is null or $6 or id in (select id from slot)
), taken as (
    delete from fw.ready where ctid = any(array(select place from won))
), leased as (
    insert into fw.lease (id, worker, token, lane, claimed_at)
    select id, $1, $2, lane, fw.now_() from won
)

-- claimed: `what` each row is: our job, one whose key is taken, how far a line was seen, a limit
select 'job' as what, j.id, j.lane, j.pkey, false as strict, 0 as looked, null::text as detail,
    case when j.inbox > 0 then j.names end as names, j.spawned, {claim_fields}
from fw.job j where j.id = any(array(select id from won))
union all
select 'key', id, lane, pkey, strict, 0, null, null, false, {no_claim_fields}
from picked where pkey is not null and not $6 and id not in (select id from slot)
union all
select 'line', max(id), lane, null, false, count(*)::int, null, null, false, {no_claim_fields}
from picked group by lane
union all
select 'limit', 0, 0, null, false, 0, name, null, false, {no_claim_fields}
from limited

-- claim: the first jobs of ready lines
with {claiming}
{claimed}

-- trade: jobs that are done, with nothing but a result, and the first of ready lines
with {claiming}
, input as materialized (
    select * from unnest($8::bigint[], $9::bigint[], $10::bytea[]) as u (id, token, result)
    where (select expires_at > fw.now_() from fw.worker where id = $1)
), fenced as (
    delete from fw.lease l using input i
    where l.id = i.id and l.worker = $1 and l.token = i.token
    returning l.id, l.claimed_at, i.result
), gone as (
    delete from fw.job where id = any(array(select id from fenced)) returning *
), kept as (
    insert into fw.history (id, finished_at, lane, state, attempt, crashes, status, progress,
        result, enqueued_at, retries, runs, ran_by, started_at, {columns})
    select g.id, fw.now_(), g.lane, g.state, g.attempt, g.crashes, 'd', g.progress, f.result,
        g.enqueued_at, g.retries, g.runs + 1, $1, f.claimed_at, {gone}
    from gone g join fenced f on f.id = g.id
), unsigned as (
    delete from fw.signal where job = any(array(select id from gone where inbox > 0))
), {forgetting}
{claimed}
union all
select 'stale', id, 0, null, false, 0, null, null, false, {no_claim_fields}
from unnest($8::bigint[]) as u (id) where id not in (select id from gone)

-- inbox: the signals jobs wait for
select s.job, s.id, s.name, s.payload from fw.signal s join fw.job j on j.id = s.job
where s.job = any($1::bigint[]) and s.name = any(j.names) order by s.id

-- children: how the children of jobs stand, without those that report by signal
select c.parent, c.id, c.kind, case when s.id is not null then 'x' when b.id is not null then 'b'
    else c.status end as status, null::bytea as result, c.error
from fw.job c left join fw.lease s on s.id = c.id
    left join fw.blocked b on b.pkey = c.pkey and b.id = c.id
where c.parent = any($1::bigint[]) and c.notify is null
union all
select h.parent, h.id, h.kind, h.status, h.result, h.error
from fw.history h where h.parent = any($1::bigint[]) and h.notify is null
order by 2

-- held_keys: which of these keys are taken; their holders cannot give them up before we commit
select pkey from fw.key_slot where pkey = any($1::text[]) for share

-- earlier: for each of these jobs, whether an earlier one of its key lives; it cannot end meanwhile
select p.id from unnest($1::bigint[], $2::text[]) as p (id, pkey) cross join lateral (
    select e.id from fw.job e where e.pkey = p.pkey and e.id < p.id order by e.id limit 1
    for key share
) e

-- block: ready jobs whose key is taken wait for it
with moved as (
    delete from fw.ready where lane = any($2::int[]) and id = any($1::bigint[])
    returning lane, id, priority, pkey, strict, since
)
insert into fw.blocked (pkey, id, lane, priority, strict, since)
select pkey, id, lane, priority, strict, since from moved

-- unblock: the first job that waits for each of these keys, if the key is free
with first as (
    select b.pkey, b.id, b.lane, b.priority, b.strict, b.since
    from unnest($1::text[]) as k (pkey) cross join lateral (
        select * from fw.blocked b where b.pkey = k.pkey order by b.id limit 1 for update
    ) b
    where not exists (select 1 from fw.key_slot s where s.pkey = k.pkey)
), moved as (
    delete from fw.blocked b using first f where b.pkey = f.pkey and b.id = f.id
    returning b.lane, b.id, b.priority, b.pkey, b.strict, b.since
)
insert into fw.ready (lane, id, priority, pkey, strict, since)
select lane, id, priority, pkey, strict, since from moved
returning lane

-- free_keys: partition keys of jobs that run no longer
delete from fw.key_slot where pkey = any($1::text[]) and id = any($2::bigint[])

-- forgetting: the unique keys of jobs that are gone, if nobody asks for them just now
unkeyed as (
    delete from fw.unique_key where ctid = any(array(
        select k.ctid from fw.unique_key k
        where k.key = any(array(select ukey from gone where ukey is not null))
            and k.job = any(array(select id from gone where ukey is not null))
            and k.until <= fw.now_()
        for update skip locked
    ))
)

-- finish: jobs that ended, fenced by their leases
with input as materialized (
    select * from unnest($2::bigint[], $3::bigint[], $4::"char"[], $5::bytea[], $6::text[],
            $7::bytea[], $8::bytea[]) as u (id, token, status, result, error, state, progress)
    where (select expires_at > fw.now_() from fw.worker where id = $1)
), fenced as (
    delete from fw.lease l using input i
    where l.id = i.id and l.worker = $1 and l.token = i.token
    returning l.id, l.claimed_at
), gone as (
    delete from fw.job where id = any(array(select id from fenced)) returning *
), kept as (
    insert into fw.history (id, finished_at, lane, state, attempt, crashes, status, progress,
        result, error, enqueued_at, retries, names, timed_out, runs, ran_by, started_at, {columns})
    select g.id, fw.now_(), g.lane, coalesce(i.state, g.state), g.attempt, g.crashes, i.status,
        coalesce(i.progress, g.progress), i.result, i.error, g.enqueued_at, g.retries, g.names,
        g.timed_out, g.runs + 1, $1, f.claimed_at, {gone}
    from gone g join input i on i.id = g.id join fenced f on f.id = g.id
), unsigned as (
    delete from fw.signal where job = any(array(
        select g.id from gone g join input i on i.id = g.id where g.inbox > 0 and i.status = 'd'))
), {forgetting}
select g.id, g.pkey, g.parent, g.notify, g.runs + 1 as runs, f.claimed_at
from gone g join fenced f on f.id = g.id

-- end_jobs: jobs that nobody runs, dead or cancelled; why they were cancelled is their error
with gone as (
    delete from fw.job where id = any($1::bigint[])
    returning *, case when $2::"char" = 'k' then {death}
        else coalesce(error, 'cancelled') end as final_error
), untimed as (
    delete from fw.timer where id = any($1::bigint[]) returning id, due
), kept as (
    insert into fw.history (id, finished_at, lane, state, attempt, crashes, status, progress,
        result, error, enqueued_at, retries, names, timed_out, runs, waited_until, {columns})
    select g.id, fw.now_(), lane, state, attempt, crashes, $2::"char", progress, null, final_error,
        enqueued_at, retries, names, timed_out, runs,
        case when g.status = 'w' then coalesce(t.due, 'infinity') end, {gone}
    from gone g left join untimed t on t.id = g.id
), {forgetting}
select id, pkey, parent, notify, final_error from gone

-- requeue: jobs that go on, at once or later, fenced by their leases
with input as materialized (
    select * from unnest($2::bigint[], $3::bigint[], $4::text[], $5::bytea[], $6::text[],
            $7::bigint[], $8::smallint[], $9::bytea[], $10::int[], $11::int[])
        as u (id, token, step, state, error, delay_us, tries, progress, lane, ran)
    where (select expires_at > fw.now_() from fw.worker where id = $1)
), fenced as (
    delete from fw.lease l using input i
    where l.id = i.id and l.worker = $1 and l.token = i.token
    returning l.id, l.claimed_at
), going as (
    update fw.job j set step = coalesce(i.step, j.step), state = coalesce(i.state, j.state),
        error = i.error, progress = coalesce(i.progress, j.progress),
        timed_out = j.timed_out and i.tries >= 0,
        attempt = case when i.tries < 0 then 0 else j.attempt + i.tries end,
        names = case when i.tries < 0 then null else j.names end,
        status = case when i.delay_us > 0 then 's' else 'r' end, lane = coalesce(i.lane, j.lane),
        runs = j.runs + i.ran
    from input i
    where j.id = any(array(select id from fenced)) and j.id = i.id and not j.cancelling
    returning j.id, j.lane, j.priority, j.pkey, j.strict, i.delay_us, j.runs
), queued as (
    insert into fw.ready (lane, id, priority, pkey, strict, since)
    select lane, id, priority, pkey, strict, fw.now_() from going where delay_us = 0
), timed as (
    insert into fw.timer (id, due)
    select id, fw.now_() + delay_us * interval '1 microsecond' from going where delay_us > 0
    on conflict (id) do update set due = excluded.due
)
select f.id, g.lane, g.delay_us, g.runs, f.claimed_at
from fenced f left join going g on g.id = f.id

-- count_runs: jobs of which a run has ended, though they end for another reason
update fw.job set runs = runs + 1 where id = any($1::bigint[]) returning id, runs

-- keep_attempts: attempts that are kept; the oldest of each job make room
with given as materialized (
    select * from unnest($1::bigint[], $2::int[], $3::text[], $4::bigint[], $5::timestamptz[],
            $6::text[], $7::text[], $8::bytea[])
        as u (job, number, step, worker, started_at, fate, error, log)
), room as (
    delete from fw.attempt a using given g
    where a.job = any($1::bigint[]) and a.job = g.job and a.number < (
        select b.number from fw.attempt b where b.job = g.job
        order by b.number desc offset {spare} limit 1)
)
insert into fw.attempt (job, number, step, worker, started_at, ended_at, fate, error, log)
select job, number, step, worker, started_at, fw.now_(), fate, error, log from given
on conflict (job, number) do update set step = excluded.step, worker = excluded.worker,
    started_at = excluded.started_at, ended_at = excluded.ended_at, fate = excluded.fate,
    error = excluded.error, log = excluded.log

-- attempts: those of a job that are kept
select number, step, worker, started_at, ended_at, fate, error,
    coalesce(octet_length(log), 0) as log_bytes
from fw.attempt where job = $1 order by number

-- attempt_log: what an attempt logged
select log from fw.attempt where job = $1 and number = $2

-- forget_attempts: of the first jobs above $1 that have some, those that are gone; how far it looked
with head as materialized (
    select job from fw.attempt where job > $1 order by job limit $2
), gone as (
    delete from fw.attempt where job = any(array(
        select h.job from head h
        where not exists (select 1 from fw.job j where j.id = h.job)
            and not exists (select 1 from fw.history e where e.id = h.job)
    ))
    returning job
)
select (select max(job) from head), (select count(*) from gone)

-- set_aside: jobs like one that a worker did not know, from the heads of its lines to those of $6
with head as materialized (
    select l.id as lane, r.id from fw.lane l cross join lateral (
        select id from fw.ready where lane = l.id order by id limit $7
    ) r
    where l.queue = $1 and l.tenant = $2 and l.skill = ''
), matching as materialized (
    select id from fw.job where id = any(array(select id from head))
        and {is_like}
    order by id for no key update skip locked
), places as materialized (
    select r.place from head h cross join lateral (
        select ctid as place from fw.ready where lane = h.lane and id = h.id
        for update skip locked
    ) r
    where h.id in (select id from matching)
), taken as (
    delete from fw.ready where ctid = any(array(select place from places))
    returning lane, id, priority, pkey, strict, since
), queued as (
    insert into fw.ready (lane, id, priority, pkey, strict, since)
    select t.id, q.id, q.priority, q.pkey, q.strict, q.since
    from taken q join fw.lane h on h.id = q.lane join fw.lane t
        on t.queue = $1 and t.tenant = $2 and t.band = h.band and t.skill = $6
    returning lane
), moved as (
    update fw.job j set error = $8, lane = t.id
    from fw.lane h join fw.lane t
        on t.queue = $1 and t.tenant = $2 and t.band = h.band and t.skill = $6
    where j.id = any(array(select id from taken)) and h.id = j.lane
)
select distinct lane from queued

-- fence: one claim given up, its job held fast
with fenced as (
    delete from fw.lease where id = $2 and worker = $1 and token = $3
        and (select expires_at > fw.now_() from fw.worker where id = $1)
    returning id, claimed_at
)
select cancelling, (select claimed_at from fenced) as claimed_at
from fw.job where id = (select id from fenced) for no key update

-- park: one job waits
with untimed as (
    delete from fw.timer where id = $1
)
update fw.job set step = $2, state = coalesce($3, state), error = $4,
    progress = coalesce($5, progress), timed_out = false, attempt = 0, status = 'w', names = $6,
    spawned = spawned or $7, lane = coalesce($8, lane), runs = runs + 1
where id = $1
returning exists (select 1 from fw.job c where c.parent = $1 and c.notify is null) as awaits, runs

-- set_timer: when a job that waits stops waiting
insert into fw.timer (id, due) values ($1, fw.now_() + $2::bigint * interval '1 microsecond')
on conflict (id) do update set due = excluded.due

-- end_timer: of a job that waits no more and that we hold. In a statement of its own: one that had
-- to wait for the job does not see a timer that was set meanwhile
delete from fw.timer where id = $1

-- consume: the signals that steps have dealt with; what those jobs waited for had come
with consumed as (
    delete from fw.signal where id = any($1::bigint[]) returning job, dedup
), keyed as (
    update fw.signal_key k set consumed_at = fw.now_() from consumed c
    where k.job = c.job and k.key = c.dedup
)
update fw.job set timed_out = false
where id = any(array(select job from consumed)) and timed_out

-- heard: whether a signal is there that the job waits for
select exists (select 1 from fw.signal where job = $1 and name = any($2::text[]))

-- wake: parked jobs become ready
with woken as (
    update fw.job set status = 'r' where id = any($1::bigint[]) and status in ('w', 's')
    returning id, lane, priority, pkey, strict
), untimed as (
    delete from fw.timer where id = any(array(select id from woken))
)
insert into fw.ready (lane, id, priority, pkey, strict, since)
select lane, id, priority, pkey, strict, fw.now_() from woken
returning lane

-- notified: something comes into the inbox of a job; it cannot park or end meanwhile
update fw.job set inbox = inbox + 1 where id = $1 returning status, names, lane

-- deliver: a signal into an inbox, unless the job has had one of that dedup key
with known as (
    insert into fw.signal_key (job, key) values ($1, $4) on conflict do nothing returning key
)
insert into fw.signal (job, name, payload, dedup) select $1, $2, $3, key from known
on conflict (job, dedup) where dedup is not null do nothing
returning id

-- send_signal: a signal into an inbox, and its job awake if it waited for that
with held as (
    select id, status in ({hearing}) and coalesce($2 = any(names), false)
        and array_position(names, null) is null as wakes
    from fw.job where id = $1 for no key update
), receiver as (
    update fw.job j set inbox = j.inbox + 1, status = case when h.wakes then 'r' else j.status end
    from held h where j.id = h.id
    returning j.id, j.lane, j.priority, j.pkey, j.strict, h.wakes
), sent as (
    insert into fw.signal (job, name, payload) select id, $2, $3 from receiver
), queued as (
    insert into fw.ready (lane, id, priority, pkey, strict, since)
    select lane, id, priority, pkey, strict, fw.now_() from receiver where wakes
)
select lane, wakes from receiver

-- lock_parents: in order, so that two endings never wait for each other
select id from fw.job where id = any($1::bigint[]) order by id for no key update

-- pending: how parents stand, and whether a child that they count has not ended
select p.id, p.status, p.names,
    exists (select 1 from fw.job c where c.parent = p.id and c.notify is null) as pending
from fw.job p where p.id = any($1::bigint[])

-- probe: `what` is there: a line with something ready, a queue with limits, a job to be cancelled
select 'line' as what, l.id::bigint as id, null as detail
from fw.lane l left join fw.queue q on q.name = l.queue
where l.queue = any($1::text[]) and q.paused is not true
    and exists (select 1 from fw.ready r where r.lane = l.id)
union all
select 'limit', null, name from fw.queue
where (name = '*' or name = any($1::text[])) and (concurrency is not null or rate_per_s is not null)
union all
select 'cancel', j.id, coalesce(j.error, 'cancelled') from fw.lease s join fw.job j on j.id = s.id
where s.worker = $2 and j.cancelling

-- cancelled: jobs of a worker that somebody cancelled, and why
select j.id, coalesce(j.error, 'cancelled') as reason from fw.lease l join fw.job j on j.id = l.id
where l.worker = $1 and j.cancelling order by j.id

-- pass_gate: waits for whoever sets limits, who waits for those that claim without having seen them
select pg_advisory_xact_lock_shared(hashtextextended('fw.limits', 0))

-- shut_gate: nobody claims under limits until we commit
select pg_advisory_xact_lock(hashtextextended('fw.limits', 0))

-- claims_under_way: transactions that change leases; what they saw may be old
select virtualtransaction from pg_locks
where relation = 'fw.lease'::regclass and mode = 'RowExclusiveLock' and granted
    and database = (select oid from pg_database where datname = current_database())

-- limits: what some queues may do, held fast while it is used
select name, concurrency, rate_per_s, burst, tokens,
    (extract(epoch from fw.now_() - refilled_at) * 1000000)::bigint
from fw.queue
where name = any($1::text[]) and (concurrency is not null or rate_per_s is not null)
order by name for no key update

-- running: how many jobs of some queues run; of all of them for `*`
select n.name, case when n.name = '*' then (select count(*) from fw.lease)
    else (select count(*) from fw.lease s join fw.lane l on l.id = s.lane
          where l.queue = n.name) end
from unnest($1::text[]) as n (name)

-- spend: tokens that were used
update fw.queue q set tokens = s.tokens, refilled_at = fw.now_()
from unnest($1::text[], $2::float8[]) as s (name, tokens) where q.name = s.name
returning case when $3::boolean then {durably} end

-- hold_due: jobs whose timers are due, held fast, but for those that somebody else holds
select id from fw.job where id = any(array(
    select id from fw.timer where due <= fw.now_() order by due, id limit $1
))
for no key update skip locked

-- promote: of jobs that we hold, those whose timers are still due become ready. In a statement of
-- its own: what was held while another one looked may have begun to wait anew. A timer of a job
-- that does not wait, or that is not there, is nobody's
with due as (
    select t.id, j.id is null or j.id = any($1::bigint[]) as held
    from fw.timer t left join fw.job j on j.id = t.id
    where t.due <= fw.now_() order by t.due, t.id limit $2
), woken as (
    update fw.job set status = 'r', timed_out = timed_out or status = 'w'
    where id = any(array(select id from due where held)) and status in ('s', 'w')
    returning id, lane, priority, pkey, strict
), gone as (
    delete from fw.timer where id = any(array(select id from due where held)) and due <= fw.now_()
)
insert into fw.ready (lane, id, priority, pkey, strict, since)
select lane, id, priority, pkey, strict, fw.now_() from woken
returning lane

-- next_due: how long until the next timer
select (extract(epoch from min(due) - fw.now_()) * 1000000)::bigint from fw.timer

-- lost_workers: workers whose lease ran out, held fast
select id from fw.worker where expires_at <= fw.now_() order by id for update skip locked

-- gone_workers: workers that are not there and hold jobs: they were lost before a claim was committed
select distinct worker from fw.lease l
where not exists (select 1 from fw.worker w where w.id = l.worker)

-- take_over: the jobs of lost workers, and what becomes of each
with lost as (
    select id from fw.lease where worker = any($1::bigint[]) order by id limit $2
    for update skip locked
), freed as (
    delete from fw.lease where id = any(array(select id from lost))
    returning id, worker, claimed_at
)
update fw.job j set crashes = crashes + 1, status = 'r', runs = runs + 1
from freed f where j.id = any(array(select id from freed)) and j.id = f.id
returning j.id, pkey, cancelling, kind, attempt + crashes as tries,
    {dies} as dies, runs, step, f.worker, f.claimed_at

-- forget_workers: lost workers that hold nothing any more
delete from fw.worker w where id = any($1::bigint[])
    and not exists (select 1 from fw.lease l where l.worker = w.id)

-- queue_again: jobs that nobody holds, back in line
insert into fw.ready (lane, id, priority, pkey, strict, since)
select lane, id, priority, pkey, strict, fw.now_() from fw.job where id = any($1::bigint[])
returning lane

-- aged: which jobs at the head of their ready lines have waited enough for a higher band
select r.lane, r.id, l.queue, l.tenant, a.band, l.skill
from fw.lane l cross join lateral (
    select lane, id, priority, since from fw.ready where lane = l.id order by id limit $1
) r cross join lateral (
    select ({points})::int as points
) p cross join lateral (
    select {band} as band
) a
where l.band < {highest} and a.band > l.band
    and not exists (select 1 from fw.queue q where q.name = l.queue and q.paused)

-- climb: jobs move to the ready lines of higher bands
with held as (
    select r.ctid as place, m.up from unnest($1::int[], $2::bigint[], $3::int[]) as m (lane, id, up)
        join fw.ready r on r.lane = m.lane and r.id = m.id
    for update of r skip locked
)
update fw.ready r set lane = h.up from held h where r.ctid = h.place returning r.id

-- family: jobs and all their descendants, of those that ended too
with recursive family (id) as (
    select unnest($1::bigint[])
    union
    select c.id from family f cross join lateral (
        select j.id from fw.job j where j.parent = f.id
        union all
        select h.id from fw.history h where h.parent = f.id
    ) c
)
select id from family order by id

-- mark_cancelled: jobs that are to end, held fast; why is their error from here on
update fw.job set cancelling = true, error = case when cancelling then error else $2 end
where id in (select id from fw.job where id = any($1::bigint[]) order by id for no key update)
returning id, lane, pkey, status

-- unqueue: ready and blocked jobs leave their lines
with unready as (
    delete from fw.ready where id = any($1::bigint[]) and lane = any(array(
        select b.id from fw.lane a join fw.lane b using (queue, tenant) where a.id = any($2::int[])))
    returning id
), unblocked as (
    delete from fw.blocked where pkey = any($3::text[]) and id = any($1::bigint[]) returning id
)
select id from unready union all select id from unblocked

-- leased: which of these jobs run
select id from fw.lease where id = any($1::bigint[])

-- lock_ended: jobs that ended, and their parents, held fast; in order, as whoever retries does it
select id, parent, ukey, notify from fw.history where id = any(array(
    select unnest($1::bigint[])
    union
    select parent from fw.history where id = any($1::bigint[]) and parent is not null
))
order by id for update

-- lock_children: of jobs that ended; whoever ends one from now on sees that its parent is back
select id from fw.job where parent = any($1::bigint[]) order by id for key share

-- revive: jobs that ended badly, back from history, unless their key or their parent is in the way
with back as (
    delete from fw.history h where h.id = any($1::bigint[]) and h.status in ({unhappy})
        and not exists (select 1 from fw.job p where p.id = h.parent)
        and not exists (select 1 from fw.job c where c.parent = h.id and c.notify is not null)
        and (h.ukey is null or h.id = any($2::bigint[]))
    returning *, not $3 and case
        when names is null or waited_until is null or array_position(names, null) is not null
        then exists (select 1 from fw.job c where c.parent = h.id and c.notify is null)
        else not exists (select 1 from fw.signal s where s.job = h.id and s.name = any(h.names))
        end as waits
), revived as (
    insert into fw.job (id, lane, state, progress, enqueued_at, spawned, retries, runs, status,
        names, timed_out, inbox, {columns})
    select id, lane, state, progress, enqueued_at, true, retries + 1,
        greatest(runs, (select max(a.number) from fw.attempt a where a.job = back.id)),
        case when waits then 'w' else 'r' end,
        case when $3 then null when waited_until is null and array_position(names, null) is null
            then array_append(names, null) else names end,
        timed_out and not $3,
        case when $3 then 0 else (select count(*) from fw.signal s where s.job = back.id) end,
        {columns}
    from back
), queued as (
    insert into fw.ready (lane, id, priority, pkey, strict, since)
    select lane, id, priority, pkey, strict, fw.now_() from back where not waits
), timed as (
    insert into fw.timer (id, due)
    select id, waited_until from back where waits and waited_until < 'infinity'
    on conflict (id) do update set due = excluded.due
), unsigned as (
    delete from fw.signal where $3 and job = any(array(select id from back))
), unkeyed as (
    delete from fw.signal_key
    where $3 and job = any(array(select id from back)) and consumed_at is null
)
select id from back

-- discard: jobs that ended badly, forgotten
with gone as (
    delete from fw.history h where h.id = any($1::bigint[]) and h.status in ({unhappy})
        and not exists (select 1 from fw.job p where p.id = h.parent)
    returning h.id
), unsigned as (
    delete from fw.signal where job = any(array(select id from gone))
), unattempted as (
    delete from fw.attempt where job = any(array(select id from gone))
)
select id from gone

-- reviving_keys: the unique keys of ended jobs, and how long they stood
select h.id, h.ukey, h.window_us from fw.history h
where h.id = any($1::bigint[]) and h.ukey is not null and h.status in ({unhappy})
    and not exists (select 1 from fw.job p where p.id = h.parent)
    and not exists (select 1 from fw.job c where c.parent = h.id and c.notify is not null)

-- progress: how far running jobs are
update fw.job j set progress = p.value
from unnest($2::bigint[], $3::bytea[]) as p (id, value)
where j.id = any($2::bigint[]) and j.id = p.id
    and exists (select 1 from fw.lease l where l.id = j.id and l.worker = $1)

-- find: one job, alive
select j.*, l.queue, l.tenant, t.due, s.worker as ran_by, s.claimed_at as started_at,
    case when s.id is not null then 'x' when b.id is not null then 'b' else j.status end as shown
from fw.job j join fw.lane l on l.id = j.lane
    left join fw.timer t on t.id = j.id left join fw.lease s on s.id = j.id
    left join fw.blocked b on b.pkey = j.pkey and b.id = j.id
where j.id = $1

-- find_ended: one job, in history
select h.*, l.queue, l.tenant from fw.history h join fw.lane l on l.id = h.lane where h.id = $1

-- last_id: the highest id of a job
select greatest((select max(id) from fw.job), (select max(id) from fw.history), 0)

-- placed: the first job that has this id or a higher one, and when it was enqueued
select id, enqueued_at from (
    (select id, enqueued_at from fw.job where id >= $1 order by id limit 1)
    union all
    (select id, enqueued_at from fw.history where id >= $1 order by id limit 1)
) as found order by id limit 1

-- find_key: the job a unique key stands for
select job from fw.unique_key k where key = $1
    and (until > fw.now_() or exists (select 1 from fw.job j where j.id = k.job))

-- queues: every queue, its settings and what is in it
with names as (
    select queue as name from fw.lane union select name from fw.queue where name <> '*'
), ready as (
    select l.queue, count(*) as n from fw.ready r join fw.lane l on l.id = r.lane group by 1
), blocked as (
    select l.queue, count(*) as n from fw.blocked r join fw.lane l on l.id = r.lane group by 1
), leased as (
    select l.queue, count(*) as n from fw.lease r join fw.lane l on l.id = r.lane group by 1
), parked as (
    select l.queue, count(*) filter (where j.status = 's') as scheduled,
        count(*) filter (where j.status = 'w') as waiting
    from fw.job j join fw.lane l on l.id = j.lane where j.status in ('s', 'w') group by 1
)
select n.name, coalesce(q.paused, false) as paused, q.concurrency, q.rate_per_s,
    coalesce(q.burst, 1) as burst, coalesce(r.n, 0) as ready,
    coalesce(p.scheduled, 0) as scheduled, coalesce(p.waiting, 0) as waiting,
    coalesce(b.n, 0) as blocked, coalesce(x.n, 0) as running
from names n left join fw.queue q on q.name = n.name left join ready r on r.queue = n.name
    left join blocked b on b.queue = n.name left join leased x on x.queue = n.name
    left join parked p on p.queue = n.name
order by n.name

-- set_paused: whether a queue gives out work
insert into fw.queue (name, paused) values ($1, $2)
on conflict (name) do update set paused = excluded.paused

-- set_limits: what a queue may do
insert into fw.queue (name, concurrency, rate_per_s, burst, tokens, refilled_at)
values ($1, $2, $3, $4::int, $4::int, fw.now_())
on conflict (name) do update set concurrency = excluded.concurrency,
    rate_per_s = excluded.rate_per_s, burst = excluded.burst, tokens = excluded.tokens,
    refilled_at = excluded.refilled_at

-- readable: whether a parent may read how a job ended: it lives, or is there and may be retried
h.parent is not null and coalesce(
    (select true from fw.job p where p.id = h.parent),
    (select true from fw.history p where p.id = h.parent and p.status in ({unhappy}) limit 1),
    false)

-- prune: jobs that were done or cancelled long ago, some at a time
delete from fw.history_by_day
where finished_at <= fw.now_() - $1::bigint * interval '1 microsecond' and id = any(array(
    select h.id from fw.history_by_day h
    where h.finished_at <= fw.now_() - $1::bigint * interval '1 microsecond'
        and not ({readable})
    order by h.finished_at limit $2
))

-- prune_first: of the jobs with the lowest ids above $3, those that ended long ago; how far it looked
with head as materialized (
    select id, finished_at, parent from fw.history_by_day where id > $3 order by id limit $2
), gone as (
    delete from fw.history_by_day
    where finished_at <= fw.now_() - $1::bigint * interval '1 microsecond' and id = any(array(
        select h.id from head h
        where h.finished_at <= fw.now_() - $1::bigint * interval '1 microsecond'
            and not ({readable})
    ))
    returning id
)
select (select max(id) from head), (select count(*) from gone)

-- prune_failed: jobs that failed or died long ago, some at a time
delete from fw.history_failed
where finished_at <= fw.now_() - $1::bigint * interval '1 microsecond' and id = any(array(
    select h.id from fw.history_failed h
    where h.finished_at <= fw.now_() - $1::bigint * interval '1 microsecond'
        and not ({readable})
    order by h.finished_at limit $2
))

-- forget_signals: those of jobs that were forgotten
delete from fw.signal s where not exists (select 1 from fw.job j where j.id = s.job)
    and not exists (select 1 from fw.history h where h.id = s.job)

-- forget_signal_keys: of signals dealt with long ago, and of those that went with their jobs
delete from fw.signal_key k
where k.consumed_at <= fw.now_() - $1::bigint * interval '1 microsecond'
    or k.consumed_at is null
        and (select s.id from fw.signal s where s.job = k.job and s.dedup = k.key) is null

-- old_keys: unique keys that seem to stand for nothing any more, held until we commit
select key from fw.unique_key k where until <= fw.now_()
    and not exists (select 1 from fw.job j where j.id = k.job)
limit $1 for update skip locked

-- forget_keys: unique keys that we hold, if they stand for nothing
delete from fw.unique_key k where key = any($1::text[]) and until <= fw.now_()
    and not exists (select 1 from fw.job j where j.id = k.job)

-- today: the day it is
select (fw.now_() at time zone 'utc')::date

-- parts: the days of history
select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
where i.inhparent = 'fw.history_by_day'::regclass and c.relname ~ '^history_[0-9]{8}$' order by 1

-- renew: a worker lives on, if it lives
update fw.worker set beat_at = fw.now_(), expires_at = greatest(expires_at,
    fw.now_() + $2::bigint * interval '1 microsecond')
where id = $1 and expires_at > fw.now_() returning id

-- leases: what a worker has, and whether it has had it for a while
select id, token, claimed_at <= fw.now_() - $2::bigint * interval '1 microsecond' as old
from fw.lease where worker = $1

-- count_lost: one crash more for claims that were begun and that we do not have, each once
update fw.job j set crashes = j.crashes + 1, runs = j.runs + 1
from unnest($2::bigint[], $3::bigint[], $4::text[], $5::int[], $6::int[])
    as i (id, token, step, attempt, crashes)
where j.id = any($2::bigint[]) and j.id = i.id
    and (j.step, j.attempt, j.crashes) = (i.step, i.attempt, i.crashes)
    and not exists (
        select 1 from fw.lease l where l.id = i.id and l.worker = $1 and l.token = i.token)
returning j.id, j.runs, j.step, fw.now_() as at

-- give_back: leases whose holder knows nothing of them
with freed as (
    delete from fw.lease l using unnest($2::bigint[], $3::bigint[]) as u (id, token)
    where l.worker = $1 and l.id = u.id and l.token = u.token returning l.id
)
insert into fw.ready (lane, id, priority, pkey, strict, since)
select lane, id, priority, pkey, strict, fw.now_() from fw.job
where id = any(array(select id from freed))
returning id, pkey

-- put_schedule: a schedule and its spec; a new one owes nothing before now
insert into fw.schedule as s (name, spec, handled_ns)
values ($1, $2, (extract(epoch from fw.now_()) * 1000000)::bigint * 1000)
on conflict (name) do update set spec = excluded.spec
returning s.name, s.spec, s.paused, s.handled_ns

-- schedules: all of them
select name, spec, paused, handled_ns from fw.schedule order by name

-- pause_schedule: whether a schedule fires
update fw.schedule set paused = $2 where name = $1 returning name

-- handled: how far a schedule was dealt with
update fw.schedule set handled_ns = greatest(handled_ns, $2) where name = $1

-- note_firings: times to fire, each once
insert into fw.firing (schedule, at_ns, noted_at)
select $1, at, fw.now_() from unnest($2::bigint[]) as t (at) order by at
on conflict do nothing returning at_ns

-- link_firing: the job of a firing
update fw.firing set job = $3 where schedule = $1 and at_ns = $2

-- lost_firings: noted a while ago, and no job came of it
update fw.firing f set tries = f.tries + 1
where (f.schedule, f.at_ns) in (
    select schedule, at_ns from fw.firing
    where job is null and noted_at <= fw.now_() - $1::bigint * interval '1 microsecond'
    order by schedule, at_ns limit $2 for update skip locked
)
returning f.schedule, f.at_ns, f.job, f.tries

-- firings: the latest of a schedule
select schedule, at_ns, job, tries from fw.firing where schedule = $1 order by at_ns desc limit $2

-- forget_firings: times long ago
delete from fw.firing where at_ns <= (extract(epoch from fw.now_()) * 1000000)::bigint * 1000 - $1
