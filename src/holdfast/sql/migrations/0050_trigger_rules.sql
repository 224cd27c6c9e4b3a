-- Trigger rules: steps of flows that run because others failed, whatever became of them, or at the
-- end of the run in any case. Maps that tolerate failures of elements, and that begin only some of
-- their elements at once. Pauses before retries with a jitter.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (50, 'trigger_rules');

-- The end of a shape, '', has one_failed if a step of it has another rule than none_failed: then a
-- step that fails does not end the run, and the end is judged by the steps that failed.
alter table holdfast.steps
    add column trigger_rule text not null default 'none_failed',
    add constraint steps_trigger_rule_is_known check (
        trigger_rule in ('none_failed', 'all_done', 'one_failed', 'always')),
    add column tolerated_count int,  -- of a map: how many elements may fail
    add column tolerated_percent int,
    add column opt_concurrency int,  -- of a map: how many elements are under way at once
    add column opt_jitter int,  -- by how many percent pauses before retries are shorter or longer
    add constraint steps_jitter_is_known check (opt_jitter between 0 and 100),
    add constraint steps_tolerated_count_is_nonnegative check (tolerated_count >= 0),
    add constraint steps_tolerated_percent_is_known check (tolerated_percent between 0 and 100),
    add constraint steps_concurrency_is_positive check (opt_concurrency > 0),
    add constraint steps_map_options_are_of_maps check (step_type = 'map'
        or num_nonnulls(tolerated_count, tolerated_percent, opt_concurrency) = 0);

-- A step that always runs comes after all others, and the end after it, though it is given nothing
-- of them.
alter table holdfast.deps add column is_implied boolean not null default false;

alter table holdfast.step_states
    drop constraint step_states_reason_is_known,
    add constraint step_states_reason_is_known check (skip_reason in (
        'condition_unmet', 'handler_failed', 'dependency_skipped', 'dependency_failed'));

alter table holdfast.step_states
    add column failed_tasks int,  -- of a map: elements that failed, and are tolerated
    add column next_task int;  -- of a map with a concurrency: the first element that has not begun
-- Of an element that failed; its output is null.
alter table holdfast.step_tasks add column error json;

commit;
