-- URLs that runs have given to others. Only the digest of the token in a URL is here: the log has
-- the URL, among the payloads that a codec encrypts.

begin;
select pg_advisory_xact_lock(hashtext('holdfast.migrate'));

insert into holdfast.schema_migrations (version, name) values (43, 'webhooks');

create table holdfast.webhooks (
    digest text primary key,  -- SHA-256 of the token, in hexadecimal digits
    run_id uuid not null,
    key text not null,
    body text not null,  -- how the body is read
    secret text,  -- the name of the variable with the key of the signature, null for none
    scheme text not null,
    opened_at timestamptz not null,
    received_at timestamptz,
    closed boolean not null default false,
    constraint webhooks_body_is_known check (body in ('json', 'text', 'bytes'))
);
create index webhooks_by_run on holdfast.webhooks (run_id);

commit;
