-- Payloads that cannot be put now, of runs that wait until they can.

-- Note that a payload of a run could not be put at a URL, and why; with an error of null, that the
-- last one could. Refuses nulls of the others (22004) and an error that is too long (22023).
-- Locks: the row of payload_owners. Called by workers.
create or replace function holdfast.note_put(p_url text, p_owner uuid, p_error text)
returns void
language plpgsql
as $$
begin
    perform holdfast._check_given('the URL of objects', p_url is not null);
    perform holdfast._check_given('an owner of objects', p_owner is not null);
    perform holdfast._check_text('an error', p_error);
    update holdfast.payload_owners o
    set failed_at = case when p_error is not null then holdfast.now() end, error = p_error
    where o.owner = p_owner and o.url = p_url
        and (p_error is not null or o.error is not null);
end $$;

-- Return where payloads of a run could not be put in the last two minutes: workers try again all
-- the time. Locks nothing. Called by clients.
create or replace function holdfast.failing_puts(p_run_id uuid)
returns table (url text, failed_at bigint, error text)
language plpgsql stable
as $$
declare
    v_now timestamptz := holdfast.now();
begin
    return query
    select o.url, holdfast._micros(o.failed_at), o.error from holdfast.payload_owners o
    where o.owner = p_run_id and o.failed_at > v_now - interval '2 minutes'
    order by o.url;
end $$;
