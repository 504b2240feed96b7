DROP INDEX `operation_idempotency`;--> statement-breakpoint
ALTER TABLE `operation` ADD `answered_at` integer;--> statement-breakpoint
CREATE UNIQUE INDEX `operation_idempotency` ON `operation` (`wallet_id`,`route`,`idempotency_key`) WHERE "operation"."state" <> 'settled' or "operation"."outcome" = 'charged' or "operation"."answered_at" is not null;--> statement-breakpoint
-- Made anew so that it is the newer of the two: where both fit, SQLite takes the newest, and the one above has every charged operation.
DROP INDEX `operation_open`;--> statement-breakpoint
CREATE INDEX `operation_open` ON `operation` (`wallet_id`,`state`) WHERE "operation"."state" <> 'settled';
