-- One handshake in three transactions, each one statement: the way it is written without a batched writer.
\set key random(1, 9000000000000000000)
WITH registered AS (
    INSERT INTO intents (key, phase, deadline, payload)
    VALUES (:key, 'WAITING_CONFIRM', now() + interval '30 s', :payload)
    RETURNING key
)
INSERT INTO ledger (key, phase) SELECT key, 'WAITING_CONFIRM' FROM registered;
UPDATE intents SET phase = 'PROCESSING'
WHERE key = :key AND phase = 'WAITING_CONFIRM' AND now() < deadline RETURNING payload;
UPDATE intents SET phase = 'COMMITTED' WHERE key = :key AND phase = 'PROCESSING';
