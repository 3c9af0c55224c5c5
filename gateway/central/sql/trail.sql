-- name: record
-- SEC-5: accesses, in the order in which they were answered.
INSERT INTO access_log (name, role, method, path, target, service, status)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::smallint[])

-- name: read
SELECT * FROM access_log WHERE ($1::bigint IS NULL OR id < $1) ORDER BY id DESC LIMIT $2
