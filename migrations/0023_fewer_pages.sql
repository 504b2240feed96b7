-- Rows that are added at the end of their table, in the order of their numbers, narrow rows for what each chat changes, and smaller
-- indexes: a chat writes fewer pages.
CREATE TABLE `__new_wallet` (
	`number` integer PRIMARY KEY NOT NULL,
	`id` text NOT NULL,
	`account_id` text NOT NULL,
	`name` text NOT NULL,
	`status` text NOT NULL,
	`budget_nanos` integer NOT NULL,
	`returned_cents` integer,
	`master_key_id` text NOT NULL,
	`token_hash` blob NOT NULL,
	`token_hint` text NOT NULL,
	`idempotency_key` text NOT NULL,
	`fingerprint` blob NOT NULL,
	`request_id` text NOT NULL,
	`created_at` integer NOT NULL,
	`expires_at` integer,
	`close_reason` text,
	`closing_since` integer,
	`closed_at` integer,
	`cleanup_attempts` integer NOT NULL,
	`cleanup_error` text,
	`parent_id` text,
	`delegated_nanos` integer DEFAULT 0 NOT NULL,
	`frozen_at` integer,
	`freeze_reason` text,
	`refill` text,
	`refill_at` integer,
	`period_spent_nanos` integer DEFAULT 0 NOT NULL,
	`next_threshold_nanos` integer,
	`first_operation` integer,
	`seal` integer NOT NULL,
	FOREIGN KEY (`account_id`) REFERENCES `account`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`master_key_id`) REFERENCES `master_key`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`parent_id`) REFERENCES `wallet`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "wallet_status" CHECK("__new_wallet"."status" in ('active', 'closing', 'expired', 'closed')),
	CONSTRAINT "wallet_name" CHECK(length("__new_wallet"."name") between 1 and 80),
	CONSTRAINT "wallet_delegated" CHECK("__new_wallet"."delegated_nanos" between 0 and "__new_wallet"."budget_nanos"),
	CONSTRAINT "wallet_refilled" CHECK("__new_wallet"."refill_at" is null or "__new_wallet"."refill" is not null),
	CONSTRAINT "wallet_closed" CHECK(("__new_wallet"."status" = 'closed') = ("__new_wallet"."closed_at" is not null)),
	CONSTRAINT "wallet_returned" CHECK(("__new_wallet"."status" = 'closed') = ("__new_wallet"."returned_cents" is not null)),
	CONSTRAINT "wallet_reason" CHECK(("__new_wallet"."status" = 'active') = ("__new_wallet"."close_reason" is null))
) STRICT;
--> statement-breakpoint
INSERT INTO `__new_wallet` SELECT
	row_number() OVER (ORDER BY rowid),
	`id`,
	`account_id`,
	`name`,
	`status`,
	`budget_nanos`,
	`returned_cents`,
	`master_key_id`,
	`token_hash`,
	`token_hint`,
	`idempotency_key`,
	`fingerprint`,
	`request_id`,
	`created_at`,
	`expires_at`,
	`close_reason`,
	`closing_since`,
	`closed_at`,
	`cleanup_attempts`,
	`cleanup_error`,
	`parent_id`,
	`delegated_nanos`,
	`frozen_at`,
	`freeze_reason`,
	`refill`,
	`refill_at`,
	`period_spent_nanos`,
	`next_threshold_nanos`,
	NULL,
	`seal`
FROM `wallet` ORDER BY rowid;--> statement-breakpoint
CREATE TABLE `balance` (
	`number` integer PRIMARY KEY NOT NULL,
	`held_nanos` integer NOT NULL,
	`spent_nanos` integer NOT NULL,
	`operation_count` integer NOT NULL,
	`answer_count` integer NOT NULL,
	`last_operation` integer,
	FOREIGN KEY (`number`) REFERENCES `wallet`(`number`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "balance_held" CHECK("balance"."held_nanos" >= 0),
	CONSTRAINT "balance_spent" CHECK("balance"."spent_nanos" >= 0)
) STRICT;
--> statement-breakpoint
INSERT INTO `balance` SELECT row_number() OVER (ORDER BY rowid), `held_nanos`, `spent_nanos`, `operation_count`, `answer_count`, NULL
FROM `wallet` ORDER BY rowid;--> statement-breakpoint
DROP TABLE `wallet`;--> statement-breakpoint
ALTER TABLE `__new_wallet` RENAME TO `wallet`;--> statement-breakpoint
CREATE UNIQUE INDEX `wallet_id` ON `wallet` (`id`);--> statement-breakpoint
CREATE UNIQUE INDEX `wallet_token` ON `wallet` (`token_hash`);--> statement-breakpoint
CREATE UNIQUE INDEX `wallet_idempotency` ON `wallet` (`account_id`,`idempotency_key`);--> statement-breakpoint
CREATE INDEX `wallet_account` ON `wallet` (`account_id`,`id`);--> statement-breakpoint
CREATE INDEX `wallet_expiry` ON `wallet` (`expires_at`) WHERE "wallet"."status" = 'active' and "wallet"."expires_at" is not null;--> statement-breakpoint
CREATE INDEX `wallet_ending` ON `wallet` (`id`) WHERE "wallet"."status" in ('closing', 'expired');--> statement-breakpoint
CREATE INDEX `wallet_parent` ON `wallet` (`parent_id`,`id`) WHERE "wallet"."parent_id" is not null;--> statement-breakpoint
CREATE INDEX `wallet_frozen` ON `wallet` (`id`) WHERE "wallet"."frozen_at" is not null and "wallet"."status" = 'active';--> statement-breakpoint
CREATE INDEX `wallet_refill` ON `wallet` (`refill_at`) WHERE "wallet"."status" = 'active' and "wallet"."refill_at" is not null;--> statement-breakpoint
CREATE TABLE `__new_operation` (
	`number` integer PRIMARY KEY NOT NULL,
	`id` text NOT NULL,
	`wallet_id` text NOT NULL,
	`kind` text NOT NULL,
	`route` text NOT NULL,
	`idempotency_key` text NOT NULL,
	`fingerprint` blob NOT NULL,
	`request_id` text NOT NULL,
	`state` text NOT NULL,
	`outcome` text,
	`settled_by` text,
	`hold_nanos` integer NOT NULL,
	`charge_nanos` integer,
	`price` text NOT NULL,
	`usage` text,
	`subject` text NOT NULL,
	`resource_id` text,
	`target_at` integer,
	`reason` text,
	`created_at` integer NOT NULL,
	`uncertain_at` integer,
	`settled_at` integer,
	`answered_at` integer,
	`tags` text,
	`freed` integer,
	`key_digest` blob NOT NULL,
	`hold_entry` integer,
	`settle_entry` integer,
	`seal` integer NOT NULL,
	FOREIGN KEY (`wallet_id`) REFERENCES `wallet`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "operation_kind" CHECK("__new_operation"."kind" in ('chat', 'compute_create', 'compute_extend')),
	CONSTRAINT "operation_state" CHECK("__new_operation"."state" in ('reserved', 'uncertain', 'settled')),
	CONSTRAINT "operation_outcome" CHECK("__new_operation"."outcome" is null or "__new_operation"."outcome" in ('charged', 'released')),
	CONSTRAINT "operation_settled" CHECK(("__new_operation"."state" = 'settled') = ("__new_operation"."outcome" is not null)),
	CONSTRAINT "operation_charge" CHECK(("__new_operation"."state" = 'settled') = ("__new_operation"."charge_nanos" is not null)),
	CONSTRAINT "operation_decided" CHECK(("__new_operation"."state" = 'settled') = ("__new_operation"."settled_by" is not null)),
	CONSTRAINT "operation_time" CHECK(("__new_operation"."state" = 'settled') = ("__new_operation"."settled_at" is not null)),
	CONSTRAINT "operation_doubt" CHECK("__new_operation"."state" <> 'uncertain' or "__new_operation"."uncertain_at" is not null),
	CONSTRAINT "operation_hold" CHECK("__new_operation"."hold_nanos" >= 0),
	CONSTRAINT "operation_bound" CHECK("__new_operation"."charge_nanos" is null or "__new_operation"."charge_nanos" between 0 and "__new_operation"."hold_nanos"),
	CONSTRAINT "operation_released" CHECK("__new_operation"."outcome" <> 'released' or "__new_operation"."charge_nanos" = 0)
) STRICT;
--> statement-breakpoint
INSERT INTO `__new_operation` SELECT
	row_number() OVER (ORDER BY rowid),
	`id`,
	`wallet_id`,
	`kind`,
	`route`,
	`idempotency_key`,
	`fingerprint`,
	`request_id`,
	`state`,
	`outcome`,
	`settled_by`,
	`hold_nanos`,
	`charge_nanos`,
	`price`,
	`usage`,
	`subject`,
	`resource_id`,
	`target_at`,
	`reason`,
	`created_at`,
	`uncertain_at`,
	`settled_at`,
	`answered_at`,
	`tags`,
	`freed`,
	key_digest(`wallet_id`, `route`, `idempotency_key`),
	(SELECT min(seq) FROM entry WHERE cause_id = operation.id AND substr(credit, 1, 5) = 'hold:'),
	(SELECT min(seq) FROM entry WHERE cause_id = operation.id AND substr(debit, 1, 5) = 'hold:'),
	`seal`
FROM `operation` ORDER BY rowid;--> statement-breakpoint
DROP TABLE `operation`;--> statement-breakpoint
ALTER TABLE `__new_operation` RENAME TO `operation`;--> statement-breakpoint
CREATE UNIQUE INDEX `operation_id` ON `operation` (`id`);--> statement-breakpoint
CREATE UNIQUE INDEX `operation_idempotency` ON `operation` (`key_digest`) WHERE "operation"."freed" is null;--> statement-breakpoint
CREATE INDEX `operation_wallet` ON `operation` (number >> 8,`wallet_id`);--> statement-breakpoint
CREATE INDEX `operation_open` ON `operation` (`wallet_id`,`state`) WHERE "operation"."state" <> 'settled';--> statement-breakpoint
CREATE INDEX `operation_charged` ON `operation` (`settled_at`) WHERE "operation"."outcome" = 'charged';--> statement-breakpoint
CREATE INDEX `operation_uncertain` ON `operation` (`uncertain_at`) WHERE "operation"."state" = 'uncertain';--> statement-breakpoint
CREATE TRIGGER operation_is_never_deleted BEFORE DELETE ON operation
BEGIN SELECT RAISE(ABORT, 'operations are kept'); END;
--> statement-breakpoint
CREATE TRIGGER operation_settles_once BEFORE UPDATE ON operation
WHEN OLD.state = 'settled'
BEGIN SELECT RAISE(ABORT, 'a settled operation is final'); END;
--> statement-breakpoint
CREATE TRIGGER operation_frees_its_key BEFORE UPDATE OF outcome, answered_at, freed ON operation
WHEN NEW.freed IS NOT iif(NEW.outcome IS 'released' AND NEW.answered_at IS NULL, 1, NULL)
BEGIN SELECT RAISE(ABORT, 'a key is free if its operation was released and never answered'); END;
--> statement-breakpoint
CREATE INDEX `operation_of` ON `operation` (`wallet_id`);--> statement-breakpoint
UPDATE `wallet` SET `first_operation` =
	(SELECT min(`operation`.`number`) FROM `operation` INDEXED BY `operation_of` WHERE `wallet_id` = `wallet`.`id`);--> statement-breakpoint
UPDATE `balance` SET `last_operation` = (SELECT max(`operation`.`number`) FROM `operation` INDEXED BY `operation_of`
	WHERE `wallet_id` = (SELECT `id` FROM `wallet` WHERE `wallet`.`number` = `balance`.`number`));--> statement-breakpoint
DROP INDEX `operation_of`;--> statement-breakpoint
CREATE TRIGGER wallet_is_never_deleted BEFORE DELETE ON wallet
BEGIN SELECT RAISE(ABORT, 'wallets are kept'); END;
--> statement-breakpoint
CREATE TRIGGER wallet_closes_once BEFORE UPDATE ON wallet
WHEN OLD.status = 'closed'
BEGIN SELECT RAISE(ABORT, 'a closed wallet is final'); END;
--> statement-breakpoint
CREATE TRIGGER wallet_owner_is_fixed BEFORE UPDATE OF account_id, parent_id ON wallet
BEGIN SELECT RAISE(ABORT, 'a wallet keeps its account and its parent'); END;
--> statement-breakpoint
CREATE TRIGGER wallet_is_counted AFTER INSERT ON wallet
BEGIN INSERT INTO tally VALUES ('wallet', 1) ON CONFLICT (table_name) DO UPDATE SET row_count = row_count + 1; END;
--> statement-breakpoint
CREATE TRIGGER wallet_has_a_balance AFTER INSERT ON wallet
BEGIN INSERT INTO balance VALUES (NEW.number, 0, 0, 0, 0, NULL); END;
--> statement-breakpoint
CREATE TRIGGER wallet_covers_its_balance BEFORE UPDATE OF status, budget_nanos, delegated_nanos ON wallet
WHEN EXISTS (SELECT 1 FROM balance WHERE number = NEW.number AND
  (held_nanos + spent_nanos + NEW.delegated_nanos > NEW.budget_nanos OR (NEW.status = 'closed' AND held_nanos <> 0)))
BEGIN SELECT RAISE(ABORT, 'a wallet covers what it holds, has spent and has delegated, and holds nothing once it is closed'); END;
--> statement-breakpoint
CREATE TRIGGER balance_is_within_its_budget BEFORE UPDATE ON balance
WHEN NOT EXISTS (SELECT 1 FROM wallet WHERE number = NEW.number AND status <> 'closed' AND
  NEW.held_nanos + NEW.spent_nanos + delegated_nanos <= budget_nanos)
BEGIN SELECT RAISE(ABORT, 'a wallet holds and spends at most its budget, and nothing once it is closed'); END;
--> statement-breakpoint
CREATE TRIGGER balance_is_never_deleted BEFORE DELETE ON balance
BEGIN SELECT RAISE(ABORT, 'balances are kept'); END;
--> statement-breakpoint
CREATE TABLE `__new_answer` (
	`number` integer PRIMARY KEY NOT NULL,
	`operation_id` text NOT NULL,
	`body` blob NOT NULL,
	`kept_until` integer NOT NULL,
	`seal` integer NOT NULL,
	FOREIGN KEY (`number`) REFERENCES `operation`(`number`) ON UPDATE no action ON DELETE no action
) STRICT;
--> statement-breakpoint
INSERT INTO `__new_answer` SELECT `operation`.`number`, `operation_id`, `body`, `kept_until`, `answer`.`seal`
FROM `answer` JOIN `operation` ON `operation`.`id` = `operation_id` ORDER BY `operation`.`number`;--> statement-breakpoint
DROP TABLE `answer`;--> statement-breakpoint
ALTER TABLE `__new_answer` RENAME TO `answer`;--> statement-breakpoint
CREATE INDEX `answer_kept` ON `answer` (`kept_until`);--> statement-breakpoint
DROP INDEX `entry_cause`;--> statement-breakpoint
CREATE INDEX `entry_cause` ON `entry` (`cause_id`) WHERE substr("entry"."cause_id", 1, 3) <> 'op_';
