CREATE TABLE `wallet_change` (
	`id` text PRIMARY KEY NOT NULL,
	`wallet_id` text NOT NULL,
	`kind` text NOT NULL,
	`amount_nanos` integer NOT NULL,
	`expires_at` integer,
	`period` text,
	`idempotency_key` text,
	`fingerprint` blob,
	`request_id` text,
	`reason` text,
	`created_at` integer NOT NULL,
	`seal` integer NOT NULL,
	FOREIGN KEY (`wallet_id`) REFERENCES `wallet`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "wallet_change_kind" CHECK("wallet_change"."kind" in ('raise', 'lower', 'extend', 'refill')),
	CONSTRAINT "wallet_change_period" CHECK(("wallet_change"."kind" = 'refill') = ("wallet_change"."period" is not null)),
	CONSTRAINT "wallet_change_expiry" CHECK(("wallet_change"."kind" = 'extend') = ("wallet_change"."expires_at" is not null)),
	CONSTRAINT "wallet_change_raise" CHECK("wallet_change"."kind" <> 'raise' or "wallet_change"."amount_nanos" > 0),
	CONSTRAINT "wallet_change_lower" CHECK("wallet_change"."kind" <> 'lower' or "wallet_change"."amount_nanos" <= 0)
) STRICT;
--> statement-breakpoint
CREATE UNIQUE INDEX `wallet_change_key` ON `wallet_change` (`wallet_id`,`idempotency_key`) WHERE "wallet_change"."idempotency_key" is not null;--> statement-breakpoint
CREATE UNIQUE INDEX `wallet_change_period` ON `wallet_change` (`wallet_id`,`period`) WHERE "wallet_change"."period" is not null;--> statement-breakpoint
CREATE INDEX `wallet_change_wallet` ON `wallet_change` (`wallet_id`,`id`);--> statement-breakpoint
-- Added to the table as it is: what is there needs no new copy, and the bounds of a new column hold for old rows too.
ALTER TABLE `wallet` ADD `parent_id` text REFERENCES `wallet`(`id`);--> statement-breakpoint
ALTER TABLE `wallet` ADD `delegated_nanos` integer DEFAULT 0 NOT NULL CONSTRAINT "wallet_delegated" CHECK("delegated_nanos" = 0 or ("delegated_nanos" > 0 and "held_nanos" + "spent_nanos" + "delegated_nanos" <= "budget_nanos"));--> statement-breakpoint
ALTER TABLE `wallet` ADD `frozen_at` integer;--> statement-breakpoint
ALTER TABLE `wallet` ADD `freeze_reason` text;--> statement-breakpoint
ALTER TABLE `wallet` ADD `refill` text;--> statement-breakpoint
ALTER TABLE `wallet` ADD `refill_at` integer CONSTRAINT "wallet_refilled" CHECK("refill_at" is null or "refill" is not null);--> statement-breakpoint
CREATE INDEX `wallet_parent` ON `wallet` (`parent_id`,`id`) WHERE "wallet"."parent_id" is not null;--> statement-breakpoint
CREATE INDEX `wallet_refill` ON `wallet` (`refill_at`) WHERE "wallet"."status" = 'active' and "wallet"."refill_at" is not null;--> statement-breakpoint
CREATE INDEX `wallet_frozen` ON `wallet` (`id`) WHERE "wallet"."frozen_at" is not null and "wallet"."status" = 'active';--> statement-breakpoint
ALTER TABLE `installation` ADD `freeze_reason` text;--> statement-breakpoint
-- A budget may change now, by a movement of the journal; whose it is may not.
DROP TRIGGER wallet_budget_is_fixed;--> statement-breakpoint
CREATE TRIGGER wallet_owner_is_fixed BEFORE UPDATE OF account_id, parent_id ON wallet
BEGIN SELECT RAISE(ABORT, 'a wallet keeps its account and its parent'); END;
--> statement-breakpoint
CREATE TRIGGER wallet_change_is_never_changed BEFORE UPDATE ON wallet_change
BEGIN SELECT RAISE(ABORT, 'changes of a wallet are final'); END;
--> statement-breakpoint
CREATE TRIGGER wallet_change_is_never_deleted BEFORE DELETE ON wallet_change
BEGIN SELECT RAISE(ABORT, 'changes of a wallet are kept'); END;
