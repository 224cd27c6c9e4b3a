-- Flows: graphs of steps, and how far their runs are.
--
-- flows, steps, deps  a shape: what a run of `flow_slug@version` is made of
-- step_states         a step of a run, from the first moment that something is known of it
-- step_tasks          results of the elements of maps
--
-- What waits for a worker is a row of `tasks`, as for all else: kind 'step', its key the step's slug
-- or, for an element of a map, `slug:index`. A flow's run has a turn row of kind 'flow', which
-- nobody claims: it is the run's lock, and what cancel, pause, deadlines and parents work on.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (7, 'flows');

alter table holdfast.tasks
    drop constraint tasks_kind_is_known,
    add constraint tasks_kind_is_known check (kind in (
        'workflow', 'flow', 'activity', 'step', 'approval', 'deadline', 'deliver')),
    add column losses smallint not null default 0;  -- a step's: leases of it that ran out

-- Return true if a step of a flow can have this name.
create function holdfast._is_slug(p_slug text) returns boolean
language sql immutable parallel safe
return octet_length(p_slug) <= 128 and p_slug ~ '^[a-zA-Z_][a-zA-Z0-9_]*$' and p_slug <> 'run';

-- Return true if a flow can have this name, with or without its app.
create function holdfast._is_flow(p_flow_slug text) returns boolean
language sql immutable parallel safe
return octet_length(p_flow_slug) <= 257 and octet_length(split_part(p_flow_slug, '/', 1)) <= 128
    and octet_length(split_part(p_flow_slug, '/', 2)) <= 128
    and p_flow_slug ~ '^([a-zA-Z0-9._-]+/)?[a-zA-Z_][a-zA-Z0-9_]*$';

-- A shape. Runs keep the one that they started with.
create table holdfast.flows (
    handler text primary key,  -- flow_slug@version: what tasks and workers call it
    flow_slug text not null,  -- with the app, `app/slug`, if it was defined in code
    version int not null,
    shape_hash text,  -- of the shape in code; null for one that was made from SQL
    is_sealed boolean not null default false,  -- has had a run: add_step begins the next version
    queue text not null default 'default',
    opt_max_attempts int not null default 3,
    opt_base_delay int not null default 5,  -- seconds, as all times of a shape
    opt_timeout int not null default 60,
    created_at timestamptz not null,
    unique (flow_slug, version),
    constraint flows_slug_is_valid check (holdfast._is_flow(flow_slug)),
    constraint flows_handler_is_slug_and_version check (handler = flow_slug || '@' || version),
    constraint flows_version_is_positive check (version > 0),
    constraint flows_max_attempts_is_nonnegative check (opt_max_attempts >= 0),
    constraint flows_base_delay_is_nonnegative check (opt_base_delay >= 0),
    constraint flows_timeout_is_positive check (opt_timeout > 0)
);

-- The nodes of a shape. Each has one more, '', which depends on all leaves: when it is ready the run
-- is complete, and its input is the run's output.
create table holdfast.steps (
    handler text not null,
    step_slug text not null,
    step_index int not null,
    step_type text not null,
    deps_count int not null default 0,
    wants_run boolean not null default true,  -- its input has the key `run`
    queue text,  -- null: the run's
    opt_max_attempts int,  -- null, here and below: the flow's
    opt_base_delay int,
    opt_timeout int,
    opt_start_delay int,
    required_input_pattern jsonb,
    forbidden_input_pattern jsonb,
    when_unmet text not null default 'skip',
    when_exhausted text not null default 'fail',
    primary key (handler, step_slug),
    constraint steps_type_is_known check (step_type in ('single', 'map', 'end')),
    constraint steps_slug_is_valid check (
        case step_type when 'end' then step_slug = '' else holdfast._is_slug(step_slug) end),
    constraint steps_map_has_one_source check (step_type <> 'map' or deps_count <= 1),
    constraint steps_when_unmet_is_known check (when_unmet in ('fail', 'skip', 'skip-cascade')),
    constraint steps_when_exhausted_is_known check (
        when_exhausted in ('fail', 'skip', 'skip-cascade')),
    constraint steps_required_pattern_is_object check (
        jsonb_typeof(required_input_pattern) = 'object'),
    constraint steps_forbidden_pattern_is_object check (
        jsonb_typeof(forbidden_input_pattern) = 'object'),
    constraint steps_max_attempts_is_nonnegative check (opt_max_attempts >= 0),
    constraint steps_base_delay_is_nonnegative check (opt_base_delay >= 0),
    constraint steps_timeout_is_positive check (opt_timeout > 0),
    constraint steps_start_delay_is_nonnegative check (opt_start_delay >= 0)
);

-- The edges of a shape.
create table holdfast.deps (
    handler text not null,
    dep_slug text not null,
    step_slug text not null,
    primary key (handler, dep_slug, step_slug),
    constraint deps_no_self check (dep_slug <> step_slug)
);
create index deps_by_step on holdfast.deps (handler, step_slug);

-- A step without a row is 'created'. It has one when it began as a map, ended, or when one of several
-- dependencies ended.
create table holdfast.step_states (
    run_id uuid not null,
    step_slug text not null,
    status text not null default 'created',
    deps_done int not null default 0,
    initial_tasks int,
    remaining_tasks int,
    output json,  -- a map's is the rows of step_tasks
    error json,
    skip_reason text,
    attempts int,  -- of a single step's task, with the worker that ended it
    worker text,
    started_at timestamptz,
    ended_at timestamptz,
    primary key (run_id, step_slug),
    constraint step_states_status_is_known check (
        status in ('created', 'started', 'completed', 'failed', 'skipped')),
    constraint step_states_tasks_known_when_started check (
        status <> 'started' or (initial_tasks > 0 and remaining_tasks between 1 and initial_tasks)),
    constraint step_states_completed_means_no_task_left check (
        status <> 'completed' or remaining_tasks = 0),
    constraint step_states_output_means_completed check (output is null or status = 'completed'),
    constraint step_states_skip_reason_matches_status check (
        (status = 'skipped') = (skip_reason is not null)),
    constraint step_states_reason_is_known check (
        skip_reason in ('condition_unmet', 'handler_failed', 'dependency_skipped')),
    constraint step_states_end_has_a_moment check (
        (status in ('completed', 'failed', 'skipped')) = (ended_at is not null))
) with (fillfactor = 80);

-- The results of the elements of maps, each written once.
create table holdfast.step_tasks (
    run_id uuid not null,
    step_slug text not null,
    task_index int not null,
    output json not null,
    attempts int not null,
    worker text,
    started_at timestamptz,
    completed_at timestamptz not null,
    primary key (run_id, step_slug, task_index)
);

-- What the functions of flows hand each other.
create type holdfast._flow_step as (run_id uuid, handler text, step_slug text);
create type holdfast._ready_step as (
    run_id uuid, handler text, step_slug text, step_type text, is_conditional boolean);
create type holdfast._step_end as (
    run_id uuid, handler text, step_slug text, outcome text);  -- completed, skipped, cascaded
create type holdfast._begun_map as (run_id uuid, handler text, step_slug text, elements int);
create type holdfast._flow_entry as (run_id uuid, event_type text, key text, details json);
create type holdfast._flow_failure as (run_id uuid, error json);
create type holdfast._handed_task as (run_id uuid, key text, handler text, payload json);
-- To whom tasks that become ready are leased at once: as many as `room`, of these queues and
-- handlers.
create type holdfast._taker as (
    worker text, room int, queues text[], handlers text[], until timestamptz);

-- What functions of flows return to programs in any language.
create type holdfast.message_record as (
    msg_id bigint, read_ct int, enqueued_at timestamptz, vt timestamptz, message jsonb);
create type holdfast.step_task_record as (
    flow_slug text, run_id uuid, step_slug text, input jsonb, msg_id bigint, task_index int,
    attempts int, lease_no int);

commit;
