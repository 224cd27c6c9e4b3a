-- Rules for starts: singletons, debounces, throttles.
--
-- start_rules        what a workflow or a flow declares. A start looks here
-- start_keys         one row for each rule and key in use; who starts with the key locks it
-- singleton_waits    runs that wait until the run before them ends
-- throttle_slots     the moments of the last starts of a throttle's key
-- freed_singletons   singletons that ended while another transaction had the row of their key

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (11, 'start_rules');

-- Return true if this is a path into an input: `input.customer`, `input.items.0.id`.
create function holdfast._is_key_path(p_path text) returns boolean
language sql immutable parallel safe
return octet_length(p_path) <= 256 and p_path ~ '^input([.][^.\s]+)*$';

create table holdfast.start_rules (
    name text primary key,  -- app/name
    version int not null,  -- of the code that declared them
    singleton_conflict text,  -- null: the runs are not singletons
    singleton_key text,  -- here and below: a path into the input, null for one key for all
    debounce_seconds float8,  -- null: no debounce
    debounce_key text,
    debounce_max_wait_seconds float8,
    throttle_limit int,  -- null: no throttle
    throttle_period_seconds float8,
    throttle_key text,
    throttle_excess text,
    constraint start_rules_version_is_positive check (version > 0),
    constraint start_rules_conflict_is_known check (
        singleton_conflict in ('refuse', 'return', 'queue')),
    constraint start_rules_debounce_is_positive check (
        debounce_seconds > 0 and debounce_seconds <= 1e10),
    constraint start_rules_max_wait_is_longer check (
        debounce_max_wait_seconds >= debounce_seconds and debounce_max_wait_seconds <= 1e10),
    constraint start_rules_limit_in_range check (throttle_limit between 1 and 1000000),
    constraint start_rules_period_is_positive check (
        throttle_period_seconds > 0 and throttle_period_seconds <= 1e10),
    constraint start_rules_excess_is_known check (throttle_excess in ('delay', 'refuse')),
    constraint start_rules_throttle_is_whole check (
        (throttle_limit is null) = (throttle_period_seconds is null)
        and (throttle_limit is null) = (throttle_excess is null)),
    constraint start_rules_keys_are_paths check (
        holdfast._is_key_path(coalesce(singleton_key, 'input'))
        and holdfast._is_key_path(coalesce(debounce_key, 'input'))
        and holdfast._is_key_path(coalesce(throttle_key, 'input')))
);

create table holdfast.start_keys (
    rule text not null,
    name text not null,
    key text not null,
    run_id uuid,  -- of a singleton: the active run; of a debounce: the run that is to come
    since timestamptz,  -- of a debounce: its first start
    not_before timestamptz,  -- of a debounce: the moment that a throttle gave the run
    count bigint not null default 0,  -- of a singleton: runs that waited; of a throttle: starts
    expires_at timestamptz,  -- from then on the row says nothing; of a singleton: null
    primary key (rule, name, key),
    constraint start_keys_rule_is_known check (rule in ('singleton', 'debounce', 'throttle')),
    constraint start_keys_singleton_has_a_run check (
        rule <> 'singleton' or (run_id is not null and expires_at is null))
) with (fillfactor = 70);
create index start_keys_by_expiry on holdfast.start_keys (expires_at)
    where expires_at is not null;

create table holdfast.singleton_waits (
    name text not null,
    key text not null,
    place bigint not null,
    run_id uuid not null unique,
    visible_at timestamptz not null,  -- the earliest moment at which the run may begin
    timeout interval,
    primary key (name, key, place)
);

create table holdfast.throttle_slots (
    name text not null,
    key text not null,
    place bigint not null,
    at timestamptz not null,
    primary key (name, key, place)
);

create table holdfast.freed_singletons (
    run_id uuid primary key,
    name text not null,
    key text not null
);

-- Of a run that was started as a singleton: its key. The key's next run begins after its end.
alter table holdfast.runs add column singleton_key text;

commit;
