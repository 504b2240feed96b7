CREATE TABLE `account` (
	`id` text PRIMARY KEY NOT NULL,
	`name` text NOT NULL,
	`available_cents` integer NOT NULL,
	`reserved_cents` integer NOT NULL,
	`spent_cents` integer NOT NULL,
	`welcome_credit_cents` integer NOT NULL,
	`owed_cents` integer NOT NULL,
	`created_at` integer NOT NULL,
	`suspended_at` integer,
	CONSTRAINT "account_available" CHECK("account"."available_cents" >= 0),
	CONSTRAINT "account_reserved" CHECK("account"."reserved_cents" >= 0),
	CONSTRAINT "account_spent" CHECK("account"."spent_cents" >= 0),
	CONSTRAINT "account_welcome" CHECK("account"."welcome_credit_cents" >= 0),
	CONSTRAINT "account_owed" CHECK("account"."owed_cents" >= 0)
) STRICT;
--> statement-breakpoint
CREATE UNIQUE INDEX `account_name` ON `account` (`name`);--> statement-breakpoint
CREATE TABLE `answer` (
	`operation_id` text PRIMARY KEY NOT NULL,
	`body` blob NOT NULL,
	`kept_until` integer NOT NULL,
	FOREIGN KEY (`operation_id`) REFERENCES `operation`(`id`) ON UPDATE no action ON DELETE no action
) STRICT;
--> statement-breakpoint
CREATE INDEX `answer_kept` ON `answer` (`kept_until`);--> statement-breakpoint
CREATE TABLE `entry` (
	`seq` integer PRIMARY KEY NOT NULL,
	`at` integer NOT NULL,
	`cause_id` text NOT NULL,
	`debit` text NOT NULL,
	`credit` text NOT NULL,
	`amount_nanos` integer NOT NULL,
	`prev_hash` blob NOT NULL,
	`hash` blob NOT NULL,
	CONSTRAINT "entry_amount" CHECK("entry"."amount_nanos" > 0),
	CONSTRAINT "entry_books" CHECK("entry"."debit" <> "entry"."credit")
) STRICT;
--> statement-breakpoint
CREATE INDEX `entry_cause` ON `entry` (`cause_id`);--> statement-breakpoint
CREATE TABLE `epoch` (
	`number` integer PRIMARY KEY NOT NULL,
	`after_seq` integer NOT NULL,
	`started_at` integer NOT NULL,
	`reason` text NOT NULL
) STRICT;
--> statement-breakpoint
CREATE TABLE `funding` (
	`id` text PRIMARY KEY NOT NULL,
	`account_id` text NOT NULL,
	`kind` text NOT NULL,
	`amount_cents` integer NOT NULL,
	`reason` text,
	`key` text,
	`created_at` integer NOT NULL,
	FOREIGN KEY (`account_id`) REFERENCES `account`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "funding_kind" CHECK("funding"."kind" in ('credit', 'debit', 'welcome')),
	CONSTRAINT "funding_amount" CHECK("funding"."amount_cents" > 0)
) STRICT;
--> statement-breakpoint
CREATE UNIQUE INDEX `funding_key` ON `funding` (`account_id`,`key`) WHERE "funding"."key" is not null;--> statement-breakpoint
CREATE INDEX `funding_account` ON `funding` (`account_id`,`id`);--> statement-breakpoint
CREATE TABLE `installation` (
	`id` integer PRIMARY KEY NOT NULL,
	`installation_id` text NOT NULL,
	`created_at` integer NOT NULL,
	`default_account_id` text,
	`master_key_id` text NOT NULL,
	`frozen_at` integer,
	CONSTRAINT "installation_one" CHECK("installation"."id" = 1)
) STRICT;
--> statement-breakpoint
CREATE TABLE `key` (
	`id` text PRIMARY KEY NOT NULL,
	`kind` text NOT NULL,
	`account_id` text NOT NULL,
	`name` text NOT NULL,
	`token_hash` blob NOT NULL,
	`last4` text NOT NULL,
	`minted_by` text NOT NULL,
	`created_at` integer NOT NULL,
	`last_used_at` integer,
	`revoked_at` integer,
	FOREIGN KEY (`account_id`) REFERENCES `account`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "key_kind" CHECK("key"."kind" in ('account', 'operator')),
	CONSTRAINT "key_name" CHECK(length("key"."name") between 1 and 80)
) STRICT;
--> statement-breakpoint
CREATE UNIQUE INDEX `key_token` ON `key` (`token_hash`);--> statement-breakpoint
CREATE INDEX `key_account` ON `key` (`account_id`,`id`);--> statement-breakpoint
CREATE TABLE `master_key` (
	`id` text PRIMARY KEY NOT NULL,
	`created_at` integer NOT NULL,
	`retired_at` integer,
	`sealed` blob,
	`sealed_by` text
) STRICT;
--> statement-breakpoint
CREATE TABLE `operation` (
	`id` text PRIMARY KEY NOT NULL,
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
	`reason` text,
	`created_at` integer NOT NULL,
	`uncertain_at` integer,
	`settled_at` integer,
	FOREIGN KEY (`wallet_id`) REFERENCES `wallet`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "operation_kind" CHECK("operation"."kind" in ('chat', 'compute_create', 'compute_extend')),
	CONSTRAINT "operation_state" CHECK("operation"."state" in ('reserved', 'uncertain', 'settled')),
	CONSTRAINT "operation_outcome" CHECK("operation"."outcome" is null or "operation"."outcome" in ('charged', 'released')),
	CONSTRAINT "operation_settled" CHECK(("operation"."state" = 'settled') = ("operation"."outcome" is not null)),
	CONSTRAINT "operation_charge" CHECK(("operation"."state" = 'settled') = ("operation"."charge_nanos" is not null)),
	CONSTRAINT "operation_decided" CHECK(("operation"."state" = 'settled') = ("operation"."settled_by" is not null)),
	CONSTRAINT "operation_time" CHECK(("operation"."state" = 'settled') = ("operation"."settled_at" is not null)),
	CONSTRAINT "operation_doubt" CHECK("operation"."state" <> 'uncertain' or "operation"."uncertain_at" is not null),
	CONSTRAINT "operation_hold" CHECK("operation"."hold_nanos" >= 0),
	CONSTRAINT "operation_bound" CHECK("operation"."charge_nanos" is null or "operation"."charge_nanos" between 0 and "operation"."hold_nanos"),
	CONSTRAINT "operation_released" CHECK("operation"."outcome" <> 'released' or "operation"."charge_nanos" = 0)
) STRICT;
--> statement-breakpoint
CREATE UNIQUE INDEX `operation_idempotency` ON `operation` (`wallet_id`,`route`,`idempotency_key`) WHERE "operation"."state" <> 'settled' or "operation"."outcome" = 'charged';--> statement-breakpoint
CREATE INDEX `operation_wallet` ON `operation` (`wallet_id`,`id`);--> statement-breakpoint
CREATE INDEX `operation_open` ON `operation` (`wallet_id`,`state`) WHERE "operation"."state" <> 'settled';--> statement-breakpoint
CREATE INDEX `operation_uncertain` ON `operation` (`uncertain_at`) WHERE "operation"."state" = 'uncertain';--> statement-breakpoint
CREATE TABLE `wallet` (
	`id` text PRIMARY KEY NOT NULL,
	`account_id` text NOT NULL,
	`name` text NOT NULL,
	`status` text NOT NULL,
	`budget_nanos` integer NOT NULL,
	`held_nanos` integer NOT NULL,
	`spent_nanos` integer NOT NULL,
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
	`closed_at` integer,
	`cleanup_attempts` integer NOT NULL,
	`cleanup_error` text,
	FOREIGN KEY (`account_id`) REFERENCES `account`(`id`) ON UPDATE no action ON DELETE no action,
	FOREIGN KEY (`master_key_id`) REFERENCES `master_key`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "wallet_status" CHECK("wallet"."status" in ('active', 'closing', 'expired', 'closed')),
	CONSTRAINT "wallet_name" CHECK(length("wallet"."name") between 1 and 80),
	CONSTRAINT "wallet_held" CHECK("wallet"."held_nanos" >= 0),
	CONSTRAINT "wallet_spent" CHECK("wallet"."spent_nanos" >= 0),
	CONSTRAINT "wallet_budget" CHECK("wallet"."held_nanos" + "wallet"."spent_nanos" <= "wallet"."budget_nanos"),
	CONSTRAINT "wallet_closed" CHECK(("wallet"."status" = 'closed') = ("wallet"."closed_at" is not null)),
	CONSTRAINT "wallet_settled" CHECK("wallet"."status" <> 'closed' or "wallet"."held_nanos" = 0),
	CONSTRAINT "wallet_returned" CHECK(("wallet"."status" = 'closed') = ("wallet"."returned_cents" is not null)),
	CONSTRAINT "wallet_reason" CHECK(("wallet"."status" = 'active') = ("wallet"."close_reason" is null))
) STRICT;
--> statement-breakpoint
CREATE UNIQUE INDEX `wallet_token` ON `wallet` (`token_hash`);--> statement-breakpoint
CREATE UNIQUE INDEX `wallet_idempotency` ON `wallet` (`account_id`,`idempotency_key`);--> statement-breakpoint
CREATE INDEX `wallet_account` ON `wallet` (`account_id`,`id`);--> statement-breakpoint
CREATE INDEX `wallet_expiry` ON `wallet` (`expires_at`) WHERE "wallet"."status" = 'active' and "wallet"."expires_at" is not null;--> statement-breakpoint
CREATE INDEX `wallet_ending` ON `wallet` (`id`) WHERE "wallet"."status" in ('closing', 'expired');