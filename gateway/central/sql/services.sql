-- name: all
-- LED-4, with how long ago each was heard of.
SELECT s.*, now() AS read_at FROM services s WHERE $1::text IS NULL OR s.name = $1 ORDER BY s.name, s.registered_at

-- name: one
SELECT s.*, now() AS read_at FROM services s WHERE s.service_ledger_id = $1

-- name: why_not
-- Why a registration was refused. Something of this name was revoked: a new ledger ID is no way back in. Or the ID is another's.
SELECT EXISTS (SELECT FROM services WHERE name = $1 AND revoked_at IS NOT NULL) AS revoked,
    EXISTS (SELECT FROM services WHERE service_ledger_id = $2 AND name <> $1) AS taken

-- name: latest_of_name
SELECT service_ledger_id FROM services WHERE name = $1 AND revoked_at IS NULL ORDER BY registered_at DESC LIMIT 1

-- name: register
-- First contact, or the same service with another address. A ledger ID of another name is not touched, and no row comes back; nor does one
-- for a name that has $6 ledgers. What is not said stays as it was, but a token goes to no other address than it came with.
INSERT INTO services AS s (service_ledger_id, name, operator_url, pull_token, pull_token_key)
SELECT $1::uuid, $2::text, $3::text, $4::bytea, $5::smallint
WHERE NOT EXISTS (SELECT FROM services WHERE name = $2 AND revoked_at IS NOT NULL)
    AND (EXISTS (SELECT FROM services WHERE service_ledger_id = $1) OR (SELECT count(*) FROM services WHERE name = $2) < $6::bigint)
ON CONFLICT (service_ledger_id) DO UPDATE SET
    operator_url = coalesce(excluded.operator_url, s.operator_url),
    pull_token = CASE WHEN excluded.pull_token IS NULL AND coalesce(excluded.operator_url, s.operator_url) IS NOT DISTINCT FROM s.operator_url
        THEN s.pull_token ELSE excluded.pull_token END,
    pull_token_key = CASE WHEN excluded.pull_token IS NULL AND coalesce(excluded.operator_url, s.operator_url) IS NOT DISTINCT FROM s.operator_url
        THEN s.pull_token_key ELSE excluded.pull_token_key END
WHERE s.name = excluded.name AND s.revoked_at IS NULL
RETURNING s.service_ledger_id

-- name: revoke
UPDATE services SET revoked_at = coalesce(revoked_at, now()), pull_token = NULL, pull_token_key = NULL
WHERE service_ledger_id = $1 RETURNING *, now() AS read_at

-- name: restore
UPDATE services SET revoked_at = NULL WHERE service_ledger_id = $1 RETURNING *, now() AS read_at

-- name: pulled
-- LED-3: how far a pull has come.
UPDATE services SET pull_cursor = $2, last_pull_at = now() WHERE service_ledger_id = $1

-- name: reseal
-- A pull token under the newest key, so that older ones can be dropped.
UPDATE services SET pull_token = $2, pull_token_key = $3 WHERE service_ledger_id = $1 AND pull_token_key = $4
