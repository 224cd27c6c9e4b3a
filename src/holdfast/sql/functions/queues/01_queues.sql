-- Message queues: what they are, and how they come and go.

-- Return a queue. Refuses an unknown one (HFQ01) and a null (22004). Functions that are called
-- often have this select themselves, and only then call _no_queue.
create or replace function holdfast._queue(p_name text) returns holdfast.queues
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_queue holdfast.queues;
begin
    select * into v_queue from holdfast.queues q where q.name = p_name;
    if not found then
        perform holdfast._no_queue(p_name);
    end if;
    return v_queue;
end $$;

-- Refuse a name that no message queue has (HFQ01), or a null (22004).
create or replace function holdfast._no_queue(p_name text) returns void
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
begin
    perform holdfast._check_given('the name of a message queue', p_name is not null);
    raise exception using errcode = 'HFQ01', message = format(
        'there is no message queue %s%s', quote_literal(left(p_name, 200)), coalesce((
            select format(
                ' in shard %s: all are in shard 0, so send without this connection', s.number)
            from holdfast.shard s where s.number > 0), ': create it first'));
end $$;

-- Create a message queue. Returns false if one with the same settings exists.
--
-- With p_fifo each message has a group, and of each group one delivery at a time is in flight. With
-- p_priorities messages may be more or less urgent. With p_filters receives may have a condition.
-- A message that was received p_max_receives times and given back each time moves to the queue
-- p_dead_letters, by default the name with `.dead` added; that queue is created if it does not
-- exist. With p_keep_seconds, acknowledged messages are kept for so long.
--
-- Refuses a queue of the same name with other settings (HFQ02), nulls (22004) and values that are
-- not allowed (22023).
-- Locks: the names that it inserts; as _note_limits. Called by users and clients.
create or replace function holdfast.create_queue(
    p_name text, p_fifo boolean default false, p_priorities boolean default false,
    p_filters boolean default false, p_visibility_seconds float8 default 30,
    p_max_receives int default null, p_dead_letters text default null,
    p_dedup_seconds float8 default 300, p_keep_seconds float8 default null
) returns boolean
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_dead_letters text := case when p_max_receives is not null
        then coalesce(p_dead_letters, p_name || '.dead') else p_dead_letters end;
    v_other holdfast.queues;
begin
    perform holdfast._check_name('a queue', p_name);
    perform holdfast._check_given('the kind of a queue',
        p_fifo is not null and p_priorities is not null and p_filters is not null);
    if p_fifo and (p_priorities or p_filters) then
        raise invalid_parameter_value using message =
            'a FIFO queue hands out each group in order: it has neither priorities nor filters';
    end if;
    perform holdfast._check_queue_times(
        p_name, p_visibility_seconds, p_dedup_seconds, p_keep_seconds);
    perform holdfast._check_dead_letters(p_name, p_fifo, p_max_receives, v_dead_letters);
    insert into holdfast.queues (name, fifo, has_priorities, has_filters, visibility_seconds,
        max_receives, dead_letters, dedup_seconds, keep_seconds, created_at)
    values (p_name, p_fifo, p_priorities, p_filters, p_visibility_seconds, p_max_receives,
        v_dead_letters, p_dedup_seconds, p_keep_seconds, holdfast.now())
    on conflict (name) do nothing;
    if found then
        perform holdfast._note_limits(p_name);
        perform holdfast._ensure_dead_letters(v_dead_letters, p_fifo);
        return true;
    end if;
    select * into v_other from holdfast.queues q where q.name = p_name;
    if (v_other.fifo, v_other.has_priorities, v_other.has_filters, v_other.visibility_seconds,
        v_other.max_receives, v_other.dead_letters, v_other.dedup_seconds, v_other.keep_seconds)
        is distinct from (p_fifo, p_priorities, p_filters, p_visibility_seconds, p_max_receives,
        v_dead_letters, p_dedup_seconds, p_keep_seconds)
    then
        raise exception using errcode = 'HFQ02', message = format(
            'there is a message queue %s with other settings: update it, or delete it first',
            p_name);
    end if;
    return false;
end $$;

-- Set what may be changed of a message queue, all of it: visibility, dead letters, times. If its
-- kind is given, it must be that: another is refused (HFQ02). Returns false if nothing
-- changed. Refuses an unknown queue (HFQ01), nulls (22004) and values that are not allowed (22023).
-- Locks: the queue's row. Called by users and clients.
create or replace function holdfast.update_queue(
    p_name text, p_visibility_seconds float8, p_max_receives int, p_dead_letters text,
    p_dedup_seconds float8, p_keep_seconds float8, p_fifo boolean default null,
    p_priorities boolean default null, p_filters boolean default null
) returns boolean
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_queue holdfast.queues := holdfast._queue(p_name);
    v_dead_letters text := case when p_max_receives is not null
        then coalesce(p_dead_letters, p_name || '.dead') else p_dead_letters end;
begin
    if (v_queue.fifo, v_queue.has_priorities, v_queue.has_filters) <> (
        coalesce(p_fifo, v_queue.fifo), coalesce(p_priorities, v_queue.has_priorities),
        coalesce(p_filters, v_queue.has_filters))
    then
        raise exception using errcode = 'HFQ02', message = format(
            'message queue %s is of another kind: delete it, and create it again', p_name);
    end if;
    perform holdfast._check_queue_times(
        p_name, p_visibility_seconds, p_dedup_seconds, p_keep_seconds);
    perform holdfast._check_dead_letters(p_name, v_queue.fifo, p_max_receives, v_dead_letters);
    update holdfast.queues q
    set visibility_seconds = p_visibility_seconds, max_receives = p_max_receives,
        dead_letters = v_dead_letters, dedup_seconds = p_dedup_seconds,
        keep_seconds = p_keep_seconds
    where q.name = p_name and (q.visibility_seconds, q.max_receives, q.dead_letters,
        q.dedup_seconds, q.keep_seconds) is distinct from (p_visibility_seconds, p_max_receives,
        v_dead_letters, p_dedup_seconds, p_keep_seconds);
    if found then
        perform holdfast._ensure_dead_letters(v_dead_letters, v_queue.fifo);
        return true;
    end if;
    return false;
end $$;

-- Refuse times that a queue cannot have (22004, 22023). Called by create_queue and update_queue.
create or replace function holdfast._check_queue_times(
    p_name text, p_visibility_seconds float8, p_dedup_seconds float8, p_keep_seconds float8
) returns void
language plpgsql immutable
as $$
declare
    v_flaw text;
begin
    perform holdfast._check_given('the visibility of a queue', p_visibility_seconds is not null);
    perform holdfast._check_given('the deduplication time of a queue', p_dedup_seconds is not null);
    v_flaw := case
        when not (p_visibility_seconds >= 0.001 and p_visibility_seconds <= 1e10) then
            format('is in flight for 0.001 to 10,000,000,000 seconds, not %s', p_visibility_seconds)
        when not holdfast._is_seconds(p_dedup_seconds) then format(
            'is known by its deduplication id for 0 to 10,000,000,000 seconds, not %s',
            p_dedup_seconds)
        when not (p_keep_seconds >= 0.001 and p_keep_seconds <= 1e10) then format(
            'is kept for 0.001 to 10,000,000,000 seconds after it was acknowledged, not %s',
            p_keep_seconds)
        end;
    if v_flaw is not null then
        raise invalid_parameter_value using message = format(
            'a message of queue %s %s', p_name, v_flaw);
    end if;
end $$;

-- Refuse dead letters that a queue cannot have (22023). Called by create_queue and update_queue.
create or replace function holdfast._check_dead_letters(
    p_name text, p_fifo boolean, p_max_receives int, p_dead_letters text
) returns void
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_flaw text;
begin
    if p_dead_letters is not null then
        perform holdfast._check_name('a queue', p_dead_letters);
    end if;
    v_flaw := case
        when p_max_receives < 1 then format(
            'a message is received 1 time or more before it is a dead letter, not %s times',
            p_max_receives)
        when p_max_receives is null and p_dead_letters is not null then
            'say after how many receives a message goes to the dead letters'
        when p_dead_letters = p_name then 'its dead letters are in another queue'
        when exists (select from holdfast.queues q
            where q.name = p_dead_letters and q.fifo <> p_fifo)
        then format('queue %s has the dead letters, and must be %s as well', p_dead_letters,
            case when p_fifo then 'FIFO' else 'not FIFO' end)
        end;
    if v_flaw is not null then
        raise invalid_parameter_value using message = format('queue %s: %s', p_name, v_flaw);
    end if;
end $$;

-- Create a queue for dead letters if it does not exist.
-- Locks: the name that it inserts; as _note_limits. Called by create_queue and update_queue.
create or replace function holdfast._ensure_dead_letters(p_name text, p_fifo boolean) returns void
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
begin
    insert into holdfast.queues (name, fifo, has_priorities, has_filters, visibility_seconds,
        dedup_seconds, created_at)
    select p_name, p_fifo, false, false, 30, 300, holdfast.now()
    where p_name is not null
        and not exists (select from holdfast.queues q where q.name = p_name)
    on conflict (name) do nothing;
    if found then
        perform holdfast._note_limits(p_name);
    end if;
end $$;

-- Delete a message queue with all that is in it, also what is in flight. Returns false if there is
-- none. Large queues are emptied by maintenance, after the queue is gone. It waits for transactions
-- that have sent to the queue; a send that comes after it waits for it, and finds no queue. Refuses
-- a queue that has the dead letters of another one (HFQ03), and a null (22004).
-- Locks: an advisory lock of the queue; its row; then as sweep_queues. Called by users and clients.
create or replace function holdfast.delete_queue(p_name text) returns boolean
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
declare
    v_of text;
begin
    perform holdfast._check_given('the name of a message queue', p_name is not null);
    perform pg_advisory_xact_lock(hashtext('holdfast.queue'), hashtext(p_name));
    select q.name into v_of from holdfast.queues q where q.dead_letters = p_name limit 1;
    if v_of is not null then
        raise exception using errcode = 'HFQ03', message = format(
            'queue %s has the dead letters of queue %s: delete that one first, or give it another '
            'queue for them', p_name, v_of);
    end if;
    delete from holdfast.queues q where q.name = p_name;
    if not found then
        return false;
    end if;
    perform holdfast.sweep_queues(10000);
    return true;
end $$;

-- Return the message queues by name, each with its settings.
create or replace function holdfast.list_queues(p_name text default null) returns table (
    name text, fifo boolean, has_priorities boolean, has_filters boolean,
    visibility_seconds float8, max_receives int, dead_letters text, dedup_seconds float8,
    keep_seconds float8, created_at bigint, is_paused boolean
)
language plpgsql stable
reset plan_cache_mode reset enable_seqscan
as $$
begin
    return query
    select q.name, q.fifo, q.has_priorities, q.has_filters, q.visibility_seconds, q.max_receives,
        q.dead_letters, q.dedup_seconds, q.keep_seconds, holdfast._micros(q.created_at),
        exists (select from holdfast.pauses p where p.scope = 'queue' and p.name = q.name)
    from holdfast.queues q
    where p_name is null or q.name = p_name
    order by q.name;
end $$;
