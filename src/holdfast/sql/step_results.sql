-- The table beside the data of transactions, in a database without holdfast: a result stands here
-- from the commit of the transaction until the log of the run has it. May be applied again.
create schema if not exists holdfast;
create table if not exists holdfast.step_results (
    run_id uuid not null,
    key text not null,
    result json not null,
    recorded_at timestamptz not null default now(),
    primary key (run_id, key)
);
create index if not exists step_results_by_age on holdfast.step_results (recorded_at);
