DROP INDEX `operation_idempotency`;--> statement-breakpoint
ALTER TABLE `operation` ADD `answered_at` integer;--> statement-breakpoint
CREATE UNIQUE INDEX `operation_idempotency` ON `operation` (`wallet_id`,`route`,`idempotency_key`) WHERE "operation"."state" <> 'settled' or "operation"."outcome" = 'charged' or "operation"."answered_at" is not null;
