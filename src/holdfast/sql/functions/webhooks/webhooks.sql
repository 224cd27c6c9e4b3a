-- Webhooks: a run opens a URL, others post to it once. A row stays until its run is deleted, so
-- that a POST that is repeated is recognised, and one that comes too late is told so.

-- Write the rows of URLs whose WebhookOpened is in the log. Returns no notices.
-- Locks: nothing that others wait for. Called by _carry_out.
create or replace function holdfast._open_webhooks(
    p_now timestamptz, p_run_ids uuid[], p_keys text[], p_details json[]
) returns text[]
language plpgsql
reset plan_cache_mode reset enable_seqscan
as $$
begin
    insert into holdfast.webhooks (digest, run_id, key, body, secret, scheme, opened_at)
    select u.details ->> 'digest', u.run_id, u.key, u.details ->> 'body',
        u.details ->> 'secret', u.details ->> 'scheme', p_now
    from unnest(p_run_ids, p_keys, p_details) as u (run_id, key, details)
    order by 1
    on conflict do nothing;
    return null;
end $$;

-- Close the URLs whose WebhookClosed is in the log. Returns no notices.
-- Locks: expects the turn rows locked; the webhooks. Called by _carry_out.
create or replace function holdfast._close_webhooks(p_run_ids uuid[], p_keys text[])
returns text[]
language plpgsql
as $$
begin
    update holdfast.webhooks h set closed = true
    from unnest(p_run_ids, p_keys) as u (run_id, key)
    where h.run_id = u.run_id and h.key = u.key;
    return null;
end $$;

-- Let a fork have the URLs with these digests, which its log has as opened and not used, if the run
-- that has them has ended: others have these URLs, and post to them. That run is the origin, or an
-- earlier fork of it. Of two forks that are made at once, the first keeps them.
-- Locks: the webhooks. Called by fork_run and _copy_attempts.
create or replace function holdfast._take_over_webhooks(p_new_run_id uuid, p_digests text[])
returns void
language plpgsql
as $$
begin
    update holdfast.webhooks h set run_id = p_new_run_id, received_at = null, closed = false
    where h.digest = any (p_digests) and exists (
        select from holdfast.runs r where r.run_id = h.run_id and r.status <> 'running');
end $$;

-- Return the webhook with this digest, no row if there is none: whose it is, how its body is read
-- and checked, and its state, 'open', 'received' or 'closed' (also of a run that has ended).
-- Locks nothing. Called by clients.
create or replace function holdfast.find_webhook(p_digest text)
returns table (run_id uuid, key text, body text, secret text, scheme text, state text)
language plpgsql stable
as $$
begin
    return query
    select h.run_id, h.key, h.body, h.secret, h.scheme, case
        when h.received_at is not null then 'received'
        when not h.closed and exists (
            select from holdfast.tasks t where t.run_id = h.run_id and t.key = '') then 'open'
        else 'closed' end
    from holdfast.webhooks h where h.digest = p_digest;
end $$;

-- Take the one POST to a webhook of a run: append WebhookReceived, and wake the run if it awaits
-- an end. Outcomes are 'received', 'duplicate' if there was a POST before, 'closed' if the run
-- closed it or has ended, 'moved' if another run has it by now, and 'missing'.
-- Refuses values that are not allowed (22004, 22023).
-- Locks: the turn row, the webhook, events. Called by clients.
create or replace function holdfast.receive_webhook(
    p_digest text, p_run_id uuid, p_body json, p_tell text default null,
    out outcome text, out notices text[]
)
language plpgsql
as $$
declare
    v_now timestamptz := holdfast.now();
    v_hook holdfast.webhooks;
begin
    perform holdfast._check_given('the digest', p_digest is not null);
    perform holdfast._check_given('the run id', p_run_id is not null);
    perform holdfast._check_json('the body', p_body);
    perform holdfast._lock_turns(array[p_run_id]);
    select * into v_hook from holdfast.webhooks h where h.digest = p_digest for update;
    outcome := case
        when v_hook.digest is null then 'missing'
        when v_hook.run_id <> p_run_id then 'moved'
        when v_hook.received_at is not null then 'duplicate'
        when v_hook.closed then 'closed' end;
    if outcome is null then
        outcome := case when holdfast._append(v_now, p_run_id, 'WebhookReceived',
            ('{"body":' || p_body || '}')::json, v_hook.key) is null then 'closed'
            else 'received' end;
    end if;
    if outcome = 'received' then
        update holdfast.webhooks h set received_at = v_now where h.digest = p_digest;
        notices := holdfast._tell(p_tell, holdfast._wake(v_now, p_run_id, ':end'));
    end if;
end $$;
