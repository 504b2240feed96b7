DROP INDEX `operation_idempotency`;--> statement-breakpoint
ALTER TABLE `operation` ADD `freed` integer;--> statement-breakpoint
-- A settled operation is final, so its trigger is made again.
DROP TRIGGER operation_settles_once;--> statement-breakpoint
UPDATE `operation` SET `freed` = 1 WHERE `outcome` = 'released' AND `answered_at` IS NULL;--> statement-breakpoint
CREATE TRIGGER operation_settles_once BEFORE UPDATE ON operation
WHEN OLD.state = 'settled'
BEGIN SELECT RAISE(ABORT, 'a settled operation is final'); END;
--> statement-breakpoint
CREATE UNIQUE INDEX `operation_idempotency` ON `operation` (`wallet_id`,`route`,`idempotency_key`) WHERE "operation"."freed" is null;--> statement-breakpoint
-- The index follows this column alone: a settlement that charges does not touch it.
CREATE TRIGGER operation_frees_its_key BEFORE UPDATE OF outcome, answered_at, freed ON operation
WHEN NEW.freed IS NOT iif(NEW.outcome IS 'released' AND NEW.answered_at IS NULL, 1, NULL)
BEGIN SELECT RAISE(ABORT, 'a key is free if its operation was released and never answered'); END;
