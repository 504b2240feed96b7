CREATE TABLE `checkout` (
	`id` text PRIMARY KEY NOT NULL,
	`account_id` text NOT NULL,
	`amount_cents` integer NOT NULL,
	`status` text NOT NULL,
	`taken_cents` integer NOT NULL,
	`session_id` text,
	`url` text,
	`payment_intent` text,
	`idempotency_key` text,
	`fingerprint` blob NOT NULL,
	`request_id` text NOT NULL,
	`created_at` integer NOT NULL,
	`expires_at` integer NOT NULL,
	`paid_at` integer,
	`due_at` integer,
	`last_error` text,
	`seal` integer NOT NULL,
	FOREIGN KEY (`account_id`) REFERENCES `account`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "checkout_status" CHECK("checkout"."status" in ('creating', 'open', 'pending', 'paid', 'expired', 'failed', 'refused', 'mismatch', 'abandoned')),
	CONSTRAINT "checkout_amount" CHECK("checkout"."amount_cents" > 0),
	CONSTRAINT "checkout_taken" CHECK("checkout"."taken_cents" between 0 and "checkout"."amount_cents"),
	CONSTRAINT "checkout_taken_back" CHECK("checkout"."taken_cents" = 0 or "checkout"."status" = 'paid'),
	CONSTRAINT "checkout_paid" CHECK(("checkout"."status" = 'paid') = ("checkout"."paid_at" is not null)),
	CONSTRAINT "checkout_asked" CHECK(("checkout"."status" in ('creating', 'open', 'pending')) = ("checkout"."due_at" is not null)),
	CONSTRAINT "checkout_known" CHECK("checkout"."status" not in ('open', 'pending', 'paid') or "checkout"."session_id" is not null),
	CONSTRAINT "checkout_freed" CHECK("checkout"."status" <> 'refused' or "checkout"."idempotency_key" is null)
) STRICT;
--> statement-breakpoint
CREATE UNIQUE INDEX `checkout_idempotency` ON `checkout` (`account_id`,`idempotency_key`) WHERE "checkout"."idempotency_key" is not null;--> statement-breakpoint
CREATE UNIQUE INDEX `checkout_session` ON `checkout` (`session_id`) WHERE "checkout"."session_id" is not null;--> statement-breakpoint
CREATE UNIQUE INDEX `checkout_payment` ON `checkout` (`payment_intent`) WHERE "checkout"."payment_intent" is not null;--> statement-breakpoint
CREATE INDEX `checkout_account` ON `checkout` (`account_id`,`id`);--> statement-breakpoint
CREATE INDEX `checkout_waiting` ON `checkout` (`account_id`) WHERE "checkout"."status" in ('creating', 'open');--> statement-breakpoint
CREATE INDEX `checkout_due` ON `checkout` (`due_at`) WHERE "checkout"."due_at" is not null;--> statement-breakpoint
CREATE INDEX `checkout_paid` ON `checkout` (`paid_at`) WHERE "checkout"."paid_at" is not null;--> statement-breakpoint
CREATE INDEX `checkout_trouble` ON `checkout` (`id`) WHERE "checkout"."status" in ('mismatch', 'abandoned');--> statement-breakpoint
CREATE TABLE `identity` (
	`issuer` text NOT NULL,
	`subject` text NOT NULL,
	`account_id` text NOT NULL,
	`created_at` integer NOT NULL,
	`seal` integer NOT NULL,
	PRIMARY KEY(`issuer`, `subject`),
	FOREIGN KEY (`account_id`) REFERENCES `account`(`id`) ON UPDATE no action ON DELETE no action
) STRICT;
--> statement-breakpoint
CREATE INDEX `identity_account` ON `identity` (`account_id`);--> statement-breakpoint
CREATE TABLE `payment_event` (
	`id` text PRIMARY KEY NOT NULL,
	`type` text NOT NULL,
	`subject` text NOT NULL,
	`received_at` integer NOT NULL,
	`seal` integer NOT NULL
) STRICT;
--> statement-breakpoint
CREATE TABLE `payment_feed` (
	`id` integer PRIMARY KEY NOT NULL,
	`read_to` integer NOT NULL,
	`due_at` integer NOT NULL,
	`seal` integer NOT NULL,
	CONSTRAINT "payment_feed_one" CHECK("payment_feed"."id" = 1)
) STRICT;
--> statement-breakpoint
CREATE TABLE `reversal` (
	`id` text PRIMARY KEY NOT NULL,
	`kind` text NOT NULL,
	`payment_intent` text NOT NULL,
	`checkout_id` text,
	`amount_cents` integer NOT NULL,
	`state` text NOT NULL,
	`as_of` integer NOT NULL,
	`created_at` integer NOT NULL,
	`seal` integer NOT NULL,
	FOREIGN KEY (`checkout_id`) REFERENCES `checkout`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "reversal_kind" CHECK("reversal"."kind" in ('refund', 'dispute')),
	CONSTRAINT "reversal_state" CHECK("reversal"."state" in ('inquiry', 'taken', 'lost', 'returned')),
	CONSTRAINT "reversal_amount" CHECK("reversal"."amount_cents" >= 0)
) STRICT;
--> statement-breakpoint
CREATE INDEX `reversal_payment` ON `reversal` (`payment_intent`);--> statement-breakpoint
CREATE INDEX `reversal_undecided` ON `reversal` (`checkout_id`) WHERE "reversal"."kind" = 'dispute' and "reversal"."state" in ('inquiry', 'taken');--> statement-breakpoint
CREATE TABLE `__new_funding` (
	`id` text PRIMARY KEY NOT NULL,
	`account_id` text NOT NULL,
	`kind` text NOT NULL,
	`amount_cents` integer NOT NULL,
	`reason` text,
	`key` text,
	`session_id` text,
	`created_at` integer NOT NULL,
	`seal` integer NOT NULL,
	FOREIGN KEY (`account_id`) REFERENCES `account`(`id`) ON UPDATE no action ON DELETE no action,
	CONSTRAINT "funding_kind" CHECK("__new_funding"."kind" in ('credit', 'debit', 'welcome', 'checkout', 'clawback', 'reinstatement')),
	CONSTRAINT "funding_amount" CHECK("__new_funding"."amount_cents" > 0),
	CONSTRAINT "funding_source" CHECK(("__new_funding"."kind" in ('checkout', 'clawback', 'reinstatement')) = ("__new_funding"."session_id" is not null))
) STRICT;
--> statement-breakpoint
INSERT INTO `__new_funding`("id", "account_id", "kind", "amount_cents", "reason", "key", "created_at", "seal") SELECT "id", "account_id", "kind", "amount_cents", "reason", "key", "created_at", "seal" FROM `funding`;--> statement-breakpoint
DROP TABLE `funding`;--> statement-breakpoint
ALTER TABLE `__new_funding` RENAME TO `funding`;--> statement-breakpoint
CREATE UNIQUE INDEX `funding_key` ON `funding` (`account_id`,`key`) WHERE "funding"."key" is not null;--> statement-breakpoint
CREATE UNIQUE INDEX `funding_checkout` ON `funding` (`session_id`) WHERE "funding"."kind" = 'checkout';--> statement-breakpoint
CREATE INDEX `funding_session` ON `funding` (`session_id`) WHERE "funding"."session_id" is not null;--> statement-breakpoint
CREATE INDEX `funding_account` ON `funding` (`account_id`,`id`);--> statement-breakpoint
ALTER TABLE `account` ADD `disputed_at` integer;
--> statement-breakpoint
-- The table of fundings was made anew, so that it takes three more kinds; with the old one its triggers went.
CREATE TRIGGER funding_is_never_changed BEFORE UPDATE ON funding
BEGIN SELECT RAISE(ABORT, 'fundings are final'); END;
--> statement-breakpoint
CREATE TRIGGER funding_is_never_deleted BEFORE DELETE ON funding
BEGIN SELECT RAISE(ABORT, 'fundings are kept'); END;
--> statement-breakpoint
CREATE TRIGGER checkout_is_never_deleted BEFORE DELETE ON checkout
BEGIN SELECT RAISE(ABORT, 'checkouts are kept'); END;
--> statement-breakpoint
CREATE TRIGGER checkout_is_paid_once BEFORE UPDATE OF status, session_id, paid_at ON checkout
WHEN OLD.status = 'paid'
BEGIN SELECT RAISE(ABORT, 'a paid checkout is final'); END;
--> statement-breakpoint
CREATE TRIGGER checkout_amount_is_fixed BEFORE UPDATE OF amount_cents, account_id ON checkout
BEGIN SELECT RAISE(ABORT, 'an amount is fixed when the checkout is made'); END;
--> statement-breakpoint
CREATE TRIGGER reversal_is_never_deleted BEFORE DELETE ON reversal
BEGIN SELECT RAISE(ABORT, 'refunds and disputes are kept'); END;
